"""The answers of a finished run in place of a model, for a harness that builds the prompts and scores again."""

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
    """Accepts every field: the run has validated those of its model's family."""

    model_config = ConfigDict(extra="allow", frozen=True)


class RecordedModel:
    """Replaces a :class:`~dare_bench.protocols.LoadedModel` for a harness: it has the recorded description and chat
    template of the run's model, and answers no requests."""

    network = None

    def __init__(self, run: Run, block: Block, chat: bool | str) -> None:
        self.path = block.model.name
        self._results, self._chat = run.results, chat
        # Without a recorded template a server rendered the messages.
        server_rendered = block.model.engine is not None and not isinstance(run.results.get("chat_template"), str)
        self.capabilities = Capabilities(likelihood=True, rolling=True, canvas=True, messages=server_rendered)
        eos = run.results.get("eot_token_id")
        self.spec = ModelSpec(
            family=block.model.family,
            mask_id=None,
            eos_ids=(eos,) if isinstance(eos, int) else (),
            eot_id=None,
            pad_id=None,
            vocab_size=0,
            context_limit=run.results.get("max_length") or 0,
            dtype=block.model.dtype,
            device=str(run.results.get("config", {}).get("device") or "cpu"),
            parameters=block.model.parameters,
        )
        # Values common to all tasks are the model's or the user's; those of single tasks are in their requests.
        settings = [task.decoding for task in block.tasks.values() if task.decoding]
        first = settings[0] if settings else {}
        self._common = {name: v for name, v in first.items() if all(name in s and s[name] == v for s in settings)}

    @cached_property
    def tokenizer(self) -> Any | None:
        """A tokenizer with the recorded chat template and special tokens, and no vocabulary; None if prompts are plain
        text."""
        text = self._results.get("chat_template")
        if not self._chat or not isinstance(text, str):
            return None
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from transformers import PreTrainedTokenizerFast

        special = {f"{name}_token": self._special(name) for name in ("bos", "eos", "pad")}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(WordLevel({}, unk_token="")),
            **{name: token for name, token in special.items() if token is not None},
        )
        tokenizer.chat_template = {self._chat: text} if isinstance(self._chat, str) else text
        return tokenizer

    def _special(self, name: str) -> str | None:
        token = self._results.get(f"tokenizer_{name}_token")
        return token[0] if isinstance(token, list) and token and isinstance(token[0], str) else None

    def resolve(self, decoding: Mapping[str, Any]) -> Decoding:
        return _AnyDecoding(**{**self._common, **decoding})

    def resolve_likelihood(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return dict(fields)

    def forwards(self, request: Request) -> int:
        return 0

    def generate(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        raise RunError(f"{self.path}: the recorded answers replace the model, which is not opened")

    score = generate


class RecordedAnswers:
    """The answers in a run's sample lines: an ``Answer`` for task sources. A document has a line for each filter, all
    with the same answers, and hashes of prompts. Documents that failed, and those of tasks that are not in ``tasks``,
    fail. Raises RunError: sample lines are missing or damaged, or a document's lines have different answers."""

    def __init__(self, run: Run, tasks: Sequence[str]) -> None:
        self._run, self._tasks = run, tasks
        self._answers: dict[Place, Generation | Likelihood] = {}
        self._prompts: dict[tuple[str, str, int], str] = {}
        self._documents: dict[tuple[str, str], str] = {}
        self._failed = {(f.task, str(f.doc_id)): f.error for f in run.require_block().failures}
        for task in tasks:
            if run.samples_file(task) is None:
                raise RunError(
                    f"{run.path} has no samples file of {task!r}, so its answers are not known; runs with"
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
                    f"{where}: its lines, one for each filter, have different answers, so the file was edited;"
                    " make them equal, or restore the original file"
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
            rolling = kind == "score" and "arg_1" not in argument
            prompt = ("", argument["arg_0"]) if rolling else (argument["arg_0"], argument.get("arg_1"))
            self._prompts[task, doc, idx] = _digest([prompt[0], prompt[1] if kind == "score" else None])
            for repeat, response in enumerate(responses):
                record = records[idx, repeat]
                cost = costs[idx] if idx < len(costs) else None
                self._answers[task, doc, idx, repeat] = (
                    _likelihood(record, [response, None] if rolling else response, cost)
                    if kind == "score"
                    else _generation(record, response)
                )

    def __call__(self, requests: Sequence[Request]) -> list[Sample]:
        """The recorded sample of each request. Raises RunError: the task's prompts, documents or repeats now differ
        from those of the run."""
        requested = {(r.task, str(r.doc_id)): r for r in requests if r.task in self._tasks}
        if removed := [document for document in self._documents if document not in requested]:
            raise self._mismatch(removed, "has an answer in the run, but is no longer in the task")
        scored = [r for r in requests if r.task in self._tasks and (r.task, str(r.doc_id)) not in self._failed]
        if added := [(r.task, str(r.doc_id)) for r in scored if self._place(r) not in self._answers]:
            raise self._mismatch(added, "is in the task now, but the samples file has no answer to it")
        prompts = ((r, self._prompts[self._place(r)[:3]]) for r in scored)
        if changed := [(r.task, str(r.doc_id)) for r, prompt in prompts if prompt not in _prompt_digests(r)]:
            raise self._mismatch(changed, "has a different prompt now: the recorded answers belong to other prompts")
        return [self._sample(request) for request in requests]

    def _place(self, request: Request) -> Place:
        task, doc, idx, repeat = place(request)
        return task, str(doc), idx, repeat

    def _sample(self, request: Request) -> Sample:
        if request.task not in self._tasks:
            return Sample(request, None, "this task was not selected")
        if (error := self._failed.get((request.task, str(request.doc_id)))) is not None:
            return Sample(request, None, error)
        return Sample(request, self._answers[self._place(request)])

    def _mismatch(self, documents: Sequence[tuple[str, str]], problem: str) -> RunError:
        distinct = list(dict.fromkeys(documents))
        task, doc = distinct[0]
        more = f" (and {len(distinct) - 1} more documents)" if len(distinct) > 1 else ""
        edited = "; the samples file was edited after the run" if self._run.edited(task) else ""
        return RunError(
            f"{self._run.path}: document {doc} of {task!r}{more} {problem}{edited}; give the task's files and data of"
            " that time (--include-path, --data-dir), or evaluate again with --fresh"
        )


def _numbers(key: str) -> tuple[int, int]:
    """(index of the request within its document, repeat) from a request key."""
    _, idx, repeat, _ = key.rsplit("/", 3)
    return int(idx), int(repeat)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()


def _prompt_digests(request: Request) -> list[str]:
    """Of a prompt and its target as a samples file may have them: lm-eval's have messages as JSON text."""
    forms = [request.prompt] if isinstance(request.prompt, str) else [request.prompt, json.dumps(plain(request.prompt))]
    return [_digest([form, request.target]) for form in forms]


def _generation(record: Mapping[str, Any], response: Any) -> Generation:
    """The parts of an answer that scorers read: text and finish reason."""
    if not isinstance(response, str):
        raise TypeError(f"expected an answer as text, got {type(response).__name__}")
    return Generation([], response, int(record["nfe"]), record["finish_reason"])


def _likelihood(record: Mapping[str, Any], response: Any, cost: float | None) -> Likelihood:
    """A log-likelihood, which lm-eval writes as text without loss. ``cost`` is what OpenCompass compares, -value /
    tokens; it gives the number of tokens."""
    value = float(response[0])
    greedy = {"True": True, "False": False}.get(str(response[1]))
    tokens = round(-float(record["value"]) / cost) if cost and record.get("value") is not None else 0
    return Likelihood(
        value,
        float(record["stderr"] or 0.0),
        greedy,
        int(record["nfe"]),
        target_tokens=tokens,
        deviations=list(map(float, record.get("deviations") or ())),
    )
