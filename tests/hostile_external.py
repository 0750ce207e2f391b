"""External results as nobody should hand them on: each kind is a genuine one with one thing about it changed.

``KINDS`` has them by name; each change gets a folder that holds ``lm-eval`` and ``opencompass`` of tests/data/external.
``layout`` says which of the two is changed, ``reach`` who must refuse it: everybody who opens the result (``run``), who
reads its documents (``samples``), or nobody (``none``).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hostile_files import HUGE, MARKS, Change, a_socket, in_json, instead, nested, put, sparse, written
from paths import ROOT

DATA = ROOT / "tests" / "data" / "external"
Reach = Literal["run", "samples", "none"]
Finder = Callable[[Path], Path]


@dataclass(frozen=True)
class Kind:
    change: Change
    layout: Literal["lm-eval", "opencompass"]
    reach: Reach


def lm_eval_results(root: Path) -> Path:
    return next((root / "lm-eval").rglob("results_*.json"))


def lm_eval_samples(root: Path) -> Path:
    return next((root / "lm-eval").rglob("samples_words_gen_*.jsonl"))


def _opencompass(part: str, pattern: str) -> Finder:
    return lambda root: next((root / "opencompass").glob(f"*/{part}/{pattern}"))


opencompass_results = _opencompass("results", "tiny-llada/ARC-c.json")
opencompass_predictions = _opencompass("predictions", "tiny-llada/ARC-c.json")
opencompass_config = _opencompass("configs", "*.py")
RESULTS: dict[str, Finder] = {"lm-eval": lm_eval_results, "opencompass": opencompass_results}
"""A file of the result that the verbs are given: lm-eval's results file; OpenCompass's is in the model's folder."""


def genuine(root: Path) -> None:
    """One result of each layout: one date of lm-eval, one model of OpenCompass."""
    shutil.copytree(DATA, root, dirs_exist_ok=True)
    shutil.rmtree(root / "lm-eval" / "tiny-llada")
    for file in (root / "lm-eval").rglob("*T09-39-*"):
        file.unlink()
    for part in ("results", "predictions"):
        shutil.rmtree(next((root / "opencompass").glob("*")) / part / "tiny-llada-base")


def _link_out(place: Path) -> None:
    other = place.parents[3] / f"outside-{place.name}"
    shutil.copy(next(DATA.rglob(place.name)), other)
    place.symlink_to(other)


def _line(places: dict[str, Any]) -> Change:
    def change(root: Path) -> None:
        file = lm_eval_samples(root)
        first, *rest = file.read_text().splitlines(keepends=True)
        value = json.loads(first)
        for place, new in places.items():
            put(value, place, new)
        file.write_text(json.dumps(value) + "\n" + "".join(rest))

    return change


def _files() -> Iterator[tuple[str, Kind]]:
    files: dict[str, tuple[Finder, Literal["lm-eval", "opencompass"], Reach]] = {
        "lm-eval results": (lm_eval_results, "lm-eval", "run"),
        "lm-eval samples": (lm_eval_samples, "lm-eval", "samples"),
        "OpenCompass results": (opencompass_results, "opencompass", "run"),
        "OpenCompass predictions": (opencompass_predictions, "opencompass", "run"),
        "OpenCompass config": (opencompass_config, "opencompass", "run"),
    }
    for name, (file, layout, reach) in files.items():
        parsed: Reach = "none" if name.endswith("config") else reach
        yield f"{name}: FIFO", Kind(instead(file, os.mkfifo), layout, reach)
        yield f"{name}: socket", Kind(instead(file, a_socket), layout, reach)
        yield f"{name}: folder", Kind(instead(file, Path.mkdir), layout, reach)
        yield f"{name}: link to /dev/zero", Kind(instead(file, lambda at: at.symlink_to("/dev/zero")), layout, reach)
        yield f"{name}: link out", Kind(instead(file, _link_out), layout, reach)
        yield f"{name}: link to itself", Kind(instead(file, lambda at: at.symlink_to(at.name)), layout, reach)
        yield f"{name}: 3 GB of nothing", Kind(instead(file, sparse(3 << 30)), layout, reach)
        yield f"{name}: not UTF-8", Kind(instead(file, written(b'{"\xff\xfe": "\xc3\x28"}\n')), layout, parsed)
        yield f"{name}: deep nesting", Kind(instead(file, written(nested('{"a":', "}") + "\n")), layout, parsed)
        yield f"{name}: a list", Kind(instead(file, written("[1, 2]\n")), layout, parsed)
        empty: Reach = "none" if name == "OpenCompass results" else parsed  # the model has other data sets
        yield f"{name}: nothing inside", Kind(instead(file, written("{}")), layout, empty)
        yield f"{name}: missing", Kind(instead(file, lambda at: None), layout, "none")
    yield (
        "OpenCompass config: unary operators",
        Kind(instead(opencompass_config, written("models=" + "-" * 300_000 + "1")), "opencompass", "none"),
    )
    yield (
        "OpenCompass config: marks",
        Kind(
            instead(opencompass_config, written(f"models=[dict(abbr='tiny-llada', path={MARKS!r})]")),
            "opencompass",
            "none",
        ),
    )


def _of_lm_eval() -> Iterator[tuple[str, Kind]]:
    wrong: dict[str, list[Any]] = {
        "results": [None, 5, []],
        "results/words_gen": [None, 5, "x"],
        "configs": [None, "none", {"words_gen": 5}],
        "config": [None, [1]],
        "group_subtasks": [{"words": 5}, {"words": [["x"]]}, {"a": ["b"], "b": ["a"]}, 7],
        "groups": [[1]],
        "n-samples": [..., 7, {}, {"words_gen": {"effective": "4"}}, {"words_gen": {"effective": -4}}],
        "higher_is_better": [[1], {"words_gen": "yes"}],
        "versions": [[3]],
        "model_name": ["m" * 10_000],
        "config/limit": ["x", -1, {}],
        "config/model_dtype": ["d" * 10_000],
        "lm_eval_version": ["v" * 10_000],
        "chat_template": [{"a": 1}],
        "system_instruction": [{}],
        "results/words_gen/exact_match,first": [1e308],
    }
    for place, values in wrong.items():
        for at, value in enumerate(values):
            yield f"lm-eval {place} {at}", Kind(in_json(lm_eval_results, {place: value}), "lm-eval", "run")
    odd: dict[str, list[Any]] = {
        "results/words_gen/exact_match,first": [float("nan"), "N/A", None, HUGE, MARKS, 5e-324],
        "results/words_gen/exact_match_stderr,first": ["N/A", float("inf"), MARKS],
        f"results/words_gen/{MARKS},{MARKS}": [0.5],
        "groups": [None],
        "n-shot": [None, {"words_gen": " "}, {"words_gen": MARKS}],
        "config/model_args": [None, 5, "a=b,c", {MARKS: MARKS}, {"pretrained": [1]}],
        "config/gen_kwargs": [MARKS, {"a": HUGE}],
        "config/model_num_parameters": [-1, "x", HUGE],
        "config/model_sha": [MARKS],
        "config/random_seed": [None, "x", HUGE],
        "model_name": [None, 5, "", MARKS, "../../name", "/a/b/c", "a\nb", "</td><script>x</script>"],
        "lm_eval_version": [None, 5, MARKS],
        "chat_template": [MARKS],
        "system_instruction": [MARKS],
        "configs/words_gen/filter_list": [MARKS, HUGE],
        "versions/words_gen": [MARKS, [1]],
        "pretty_env_info": [MARKS],
    }
    for place, values in odd.items():
        for at, value in enumerate(values):
            yield f"lm-eval {place}, odd {at}", Kind(in_json(lm_eval_results, {place: value}), "lm-eval", "none")

    def rename(name: str) -> Change:
        return lambda root: lm_eval_results(root).rename(lm_eval_results(root).with_name(name)) and None

    yield "lm-eval date that is none", Kind(rename("results_9999-99-99T99-99-99.5.json"), "lm-eval", "run")
    lines: dict[str, list[Any]] = {
        "doc_id": [..., None, [1], 1.5],
        "target": [..., 5],
        "arguments": [..., [], {"gen_args_0": 5}],
        "resps": [..., "x", [5]],
        "metrics": [..., "x"],
        "exact_match": [1e308, float("nan")],
        "prompt_hash": [...],
    }
    for place, values in lines.items():
        for at, value in enumerate(values):
            yield f"lm-eval line {place} {at}", Kind(_line({place: value}), "lm-eval", "samples")
    marks = {"target": MARKS, "resps": [[MARKS]], "filtered_resps": [MARKS], "doc": {MARKS: MARKS},
             "arguments/gen_args_0/arg_0": MARKS, "more": HUGE}  # fmt: skip
    yield "lm-eval line, marks", Kind(_line(marks), "lm-eval", "none")


def _of_opencompass() -> Iterator[tuple[str, Kind]]:
    results: dict[str, list[Any]] = {
        "accuracy": [..., float("nan"), "x", None, True, HUGE, -5, 1e50, MARKS, 5e-324],
        MARKS: [5.0],
        "a,b": [5.0],
        "details": [..., 5, "x", [], [5], {}, {"0": MARKS}],
        "details/0/correct": ["x", None, [[1]], HUGE, 5e-324],
        "details/0/references": [MARKS, 5, [MARKS]],
        "error": [MARKS],
    }
    for place, values in results.items():
        for at, value in enumerate(values):
            change = in_json(opencompass_results, {place: value})
            yield f"OpenCompass {place} {at}", Kind(change, "opencompass", "none")
    yield "OpenCompass accuracy 1e308", Kind(in_json(opencompass_results, {"accuracy": 1e308}), "opencompass", "run")
    predictions: dict[str, list[Any]] = {
        "0": [..., 5, None],
        "7": [{}],
    }
    for place, values in predictions.items():
        for at, value in enumerate(values):
            change = in_json(opencompass_predictions, {place: value})
            yield f"OpenCompass prediction {place} {at}", Kind(change, "opencompass", "samples")
    odd: dict[str, Any] = {
        "0/origin_prompt": [{"role": MARKS, "prompt": MARKS}],
        "0/label: A": 5,
        "0/label: A/PPL": HUGE,
        "0/label: A/prompt": MARKS,
        f"0/label: {MARKS}": {"PPL": MARKS},
        "0/gold": [MARKS],
        "0/prediction": {"a": MARKS},
    }
    for place, value in odd.items():
        change = in_json(opencompass_predictions, {place: value})
        yield f"OpenCompass prediction {place}, odd", Kind(change, "opencompass", "none")

    def data_set(root: Path) -> None:
        for file in (opencompass_results(root), opencompass_predictions(root)):
            file.rename(file.with_name(f"{MARKS.replace('/', '')}.json"))

    yield "OpenCompass data set named by marks", Kind(data_set, "opencompass", "none")


KINDS: dict[str, Kind] = dict([*_files(), *_of_lm_eval(), *_of_opencompass()])
