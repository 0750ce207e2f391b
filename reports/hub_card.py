"""Scores in the front matter of a model card (README.md), as its ``model-index``; the rest of the card stays as it is.

huggingface_hub would parse the whole front matter and write it anew, which loses comments and turns a bare ``no`` into
``false``. Here the one entry is cut out of the text and put back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dare_bench.errors import DataError
from dare_bench.reading import MAX_YAML, parse_yaml

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

KEY = "model-index"


def with_results(card: str, model: str, results: Sequence[EvalResult], where: str = "README.md") -> str:
    """The card with these results in its ``model-index``: under the one model that it lists, else under ``model``. A
    result of the same task, data set and metric is replaced, all others stay.

    Raises:
        DataError: the card's front matter, or its ``model-index``, is not what the hub reads; names ``where``.
    """
    from huggingface_hub.repocard import REGEX_YAML_BLOCK
    from huggingface_hub.repocard_data import model_index_to_eval_results

    card = card.removeprefix("\ufeff")
    newline = "\r\n" if "\r\n" in card else "\n"
    match = REGEX_YAML_BLOCK.search(card)
    front = match[2].replace("\r\n", "\n") if match else ""
    if len(front) > MAX_YAML:
        raise DataError(f"{where}: its front matter has {len(front):,} characters; at most {MAX_YAML:,} are read")
    try:
        data = parse_yaml(front) or {}
    except ValueError as error:
        raise DataError(f"{where}: its front matter cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise DataError(f"{where}: its front matter is {type(data).__name__}, expected a mapping of names to values")
    index = _merged(data.get(KEY), model, results, where)
    block = dumped({KEY: index})
    whole = _spliced(front, block)
    if _loaded(whole) != {**data, KEY: index}:  # anchors, a mapping in braces: what no cut leaves as it was
        whole = dumped({**data, KEY: index})
    model_index_to_eval_results(_loaded(whole)[KEY])
    body = card[match.end() :] if match else f"{newline}{card}" if card else ""
    return f"---\n{whole}---\n".replace("\n", newline) + body


def dumped(value: Any) -> str:
    """YAML in the order given."""
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def _loaded(text: str) -> Any:
    try:
        return parse_yaml(text)
    except ValueError:
        return None


def _spliced(front: str, block: str) -> str:
    """The YAML text with ``block`` in the place of its ``model-index``, or at its end."""
    import yaml

    node = yaml.compose(front)
    lines = front.splitlines()
    starts = [key.start_mark.line for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    names = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    if KEY not in names:
        return "\n".join([*lines, block])
    at = names.index(KEY)
    start, end = starts[at], starts[at + 1] if at + 1 < len(starts) else len(lines)
    while end > start and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1  # a comment before the next entry is that one's
    return "\n".join([*lines[:start], block.rstrip("\n"), *lines[end:], ""])


def _merged(old: Any, model: str, results: Sequence[EvalResult], where: str) -> list[dict[str, Any]]:
    from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

    if old is None or old == []:
        models: list[dict[str, Any]] = []
    else:
        try:
            model_index_to_eval_results(old)
            models = [{**result, "results": list(result["results"])} for result in old]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"{where}: its {KEY} is not what the hub reads ({type(error).__name__}: {error}); fix or remove it"
            ) from error
    own = models[0] if len(models) == 1 else next((result for result in models if result["name"] == model), None)
    if own is None:
        models.append(own := {"name": model, "results": []})
    # One at a time: huggingface_hub joins results of one data set and keeps the first one's task and arguments only.
    new = [part for result in results for part in eval_results_to_model_index(model, [result])[0]["results"]]
    replaced = {_identity(part, metric) for part in new for metric in part["metrics"]}
    kept = []
    for part in own["results"]:
        metrics = [metric for metric in part["metrics"] if _identity(part, metric) not in replaced]
        if metrics:
            kept.append({**part, "metrics": metrics})
    own["results"] = [*kept, *new]
    return models


def _identity(part: Mapping[str, Any], metric: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes two results those of one measurement: task, data set and metric, not how it was set up."""
    task, dataset = part["task"], part["dataset"]
    names = (task["type"], task.get("name"), dataset["type"], dataset.get("config"), dataset.get("split"))
    return tuple(map(str, (*names, metric["type"], metric.get("name"))))
