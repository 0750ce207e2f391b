"""A finished run's answers in place of a model: what a harness needs to build its prompts and to score again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from pydantic import ConfigDict

from dare_bench.errors import RunError
from dare_bench.harness.common.requests import place
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import Block
from dare_bench.runs.writer import plain
from dare_bench.types import Capabilities, Decoding, Generation, Likelihood, LoopStats, ModelSpec, Request, Sample

Place = tuple[str, str, int, int]
"""(task, document, index of the request within it, repeat)."""


class _AnyDecoding(Decoding):
    """Takes every field: which ones the model's family had was settled when the run was made."""

    model_config = ConfigDict(extra="allow", frozen=True)


class RecordedModel:
    """Stands where harnesses expect a :class:`~dare_bench.protocols.LoadedModel`: it says of itself what the run
    recorded, renders chat templates as the run's model did, and answers nothing."""

    network = None

    def __init__(self, run: Run, block: Block, chat: bool | str) -> None:
        self.path = block.model.name
        self.capabilities = Capabilities(likelihood=True)
        self._results, self._chat = run.results, chat
        eos = run.results.get("eot_token_id")
        self.spec = ModelSpec(
            family=block.model.family,
            mask_id=-1,
            eos_ids=(eos,) if isinstance(eos, int) else (),
            eot_id=None,
            pad_id=None,
            vocab_size=0,
            context_limit=run.results.get("max_length") or 0,
            dtype=block.model.dtype,
            device=str(run.results.get("config", {}).get("device") or "cpu"),
            parameters=block.model.parameters,
        )
        # What all tasks resolved alike are the model's own values, or the user's: a task's stand in its requests.
        settings = [task.decoding for task in block.tasks.values() if task.decoding]
        first = settings[0] if settings else {}
        self._own = {name: v for name, v in first.items() if all(name in s and s[name] == v for s in settings)}

    @cached_property
    def tokenizer(self) -> Any | None:
        """A tokenizer with the chat template and the special tokens that the run recorded, and no vocabulary; None
        where prompts are plain text."""
        text = self._results.get("chat_template")
        if not self._chat or not isinstance(text, str):
            return None
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from transformers import PreTrainedTokenizerFast

        special = {f"{name}_token": self._special(name) for name in ("bos", "eos", "pad")}
        made = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(WordLevel({}, unk_token="")),
            **{name: token for name, token in special.items() if token is not None},
        )
        made.chat_template = {self._chat: text} if isinstance(self._chat, str) else text
        return made

    def _special(self, name: str) -> str | None:
        found = self._results.get(f"tokenizer_{name}_token")
        return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else None

    def resolve(self, decoding: Mapping[str, Any]) -> Decoding:
        return _AnyDecoding(**{**self._own, **decoding})

    def resolve_likelihood(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return dict(fields)

    def forwards(self, request: Request) -> int:
        return 0

    def generate(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        raise RunError(f"{self.path}: the recorded answers stand in for the model, which is not opened")

    score = generate


class RecordedAnswers:
    """The answers of a run's sample lines: an ``Answer`` for task sources.

    A line holds a document as one filter saw it; the lines of one document repeat its answers. Of prompts only hashes
    are kept. Documents that failed fail again, for the reason recorded, and so do all of other tasks than ``tasks``.

    Raises:
        RunError: sample lines are missing or damaged, or a document's lines do not tell the same answers.
    """

    def __init__(self, run: Run, tasks: Sequence[str]) -> None:
        assert run.block is not None
        self._run, self._tasks = run, tasks
        self._answers: dict[Place, Generation | Likelihood] = {}
        self._asked: dict[tuple[str, str, int], str] = {}
        self._documents: dict[tuple[str, str], str] = {}
        self._failed = {(f.task, str(f.doc_id)): f.error for f in run.block.failures}
        for task in tasks:
            if run.samples_file(task) is None:
                raise RunError(
                    f"{run.path} has no samples file of {task!r}, so its answers are not known; runs made with"
                    " --no-log-samples cannot be scored again"
                )
            for row in run.samples(task):
                self._take(task, row)

    def _take(self, task: str, row: Mapping[str, Any]) -> None:
        where = f"{self._run.samples_file(task)}, document {row.get('doc_id')}"
        doc, mark = str(row.get("doc_id")), _digest([row.get("arguments"), row.get("resps")])
        if (task, doc) in self._documents:
            if self._documents[task, doc] != mark:
                raise RunError(
                    f"{where}: its lines, one for each filter, hold different answers, so the file was edited;"
                    " make them equal, or put the run's own file back"
                )
            return
        self._documents[task, doc] = mark
        try:
            self._read(task, doc, row)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RunError(f"{where}: the line is damaged ({type(error).__name__}: {error})") from error

    def _read(self, task: str, doc: str, row: Mapping[str, Any]) -> None:
        records = {_numbers(record["key"]): record for record in row["dare_bench"]}
        costs = list((row.get("nll_per_token") or {}).values())
        for idx, (argument, responses) in enumerate(zip(row["arguments"].values(), row["resps"], strict=True)):
            kind = records[idx, 0]["kind"]
            told = argument.get("arg_1") if kind == "score" else None
            self._asked[task, doc, idx] = _digest([argument["arg_0"], told])
            for repeat, response in enumerate(responses):
                record = records[idx, repeat]
                cost = costs[idx] if idx < len(costs) else None
                made = _likelihood(record, response, cost) if kind == "score" else _generation(record, response)
                self._answers[task, doc, idx, repeat] = made

    def __call__(self, requests: Sequence[Request]) -> list[Sample]:
        """The recorded sample of each request.

        Raises:
            RunError: the task asks now what the run was not asked: other prompts, other documents, more repeats.
        """
        asked = {(request.task, str(request.doc_id)) for request in requests if request.task in self._tasks}
        left = [document for document in self._documents if document not in asked]
        if left:
            raise self._other(left, "has an answer in the run, but the task does not ask it any more")
        open_ = [r for r in requests if r.task in self._tasks and (r.task, str(r.doc_id)) not in self._failed]
        if unknown := [r for r in open_ if self._place(r) not in self._answers]:
            what = "is asked now, but the samples file has no answer to it"
            raise self._other([(r.task, str(r.doc_id)) for r in unknown], what)
        if changed := [r for r in open_ if self._asked[self._place(r)[:3]] != _digest([r.prompt, r.target])]:
            what = "has another prompt now than in the run: the recorded answers belong to other prompts"
            raise self._other([(r.task, str(r.doc_id)) for r in changed], what)
        return [self._sample(request) for request in requests]

    def _place(self, request: Request) -> Place:
        task, doc, idx, repeat = place(request)
        return task, str(doc), idx, repeat

    def _sample(self, request: Request) -> Sample:
        if request.task not in self._tasks:
            return Sample(request, None, "this task was not to be scored")
        if (why := self._failed.get((request.task, str(request.doc_id)))) is not None:
            return Sample(request, None, why)
        return Sample(request, self._answers[self._place(request)])

    def _other(self, documents: Sequence[tuple[str, str]], what: str) -> RunError:
        found = list(dict.fromkeys(documents))
        task, doc = found[0]
        more = f" (and {len(found) - 1} more documents)" if len(found) > 1 else ""
        edited = "; the samples file was edited after the run" if self._run.edited(task) else ""
        return RunError(
            f"{self._run.path}: document {doc} of {task!r}{more} {what}{edited}; give the task's files and data of that"
            " time (--include-path, --data-dir), or evaluate again"
        )


def _numbers(key: str) -> tuple[int, int]:
    """(index of the request within its document, repeat), which a key ends in before its hash."""
    _, idx, repeat, _ = key.rsplit("/", 3)
    return int(idx), int(repeat)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()


def _generation(record: Mapping[str, Any], response: Any) -> Generation:
    """An answer as scorers read it: its text, and why it ended."""
    if not isinstance(response, str):
        raise TypeError(f"an answer is text, found {type(response).__name__}")
    return Generation([], response, int(record["nfe"]), record["finish_reason"])


def _likelihood(record: Mapping[str, Any], response: Any, cost: float | None) -> Likelihood:
    """A log-likelihood. lm-eval writes it as text, from which the number comes back exactly.

    ``cost`` is what OpenCompass compares, -value / tokens: the number of tokens is found from it.
    """
    value = float(response[0])
    greedy = {"True": True, "False": False}.get(str(response[1]))
    tokens = round(-float(record["value"]) / cost) if cost and record.get("value") is not None else 0
    return Likelihood(value, float(record["stderr"] or 0.0), greedy, int(record["nfe"]), target_tokens=tokens)
