"""From lm-eval's instances to requests: their prompts, decoding fields and keys.

Used by both entry points: ours (:mod:`dare_bench.harness.lm_eval.source`) and lm-eval's (:mod:`dare_bench.lm_eval`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from dare_bench import seeds
from dare_bench.errors import DataError, DecodingError, UsageError
from dare_bench.protocols import LoadedModel
from dare_bench.registry import registry
from dare_bench.types import Request

DEFAULT_GEN_LENGTH = 256
"""lm-eval's length of an answer if the task does not set one."""
ROLLING = "loglikelihood_rolling"
"""lm-eval's requests for the probability of a whole text."""
MIDDLE = "middle"
"""Of ``generation_kwargs``: the text that stands in the prompt where the answer belongs, with the rest behind it."""
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
# Settings of other samplers at the values that disable them: omitting these changes nothing.
_DISABLED: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1, None),
    "top_k": (0, -1, None),
    "min_p": (0, None),
    "num_beams": (1, None),
    "num_return_sequences": (1, None),
    "repetition_penalty": (1, None),
    "use_cache": (True, False, None),
}


def plain(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's ``generation_kwargs`` as decoding fields; unknown ones stay as they are; raises DecodingError.

    ``until`` gives ``stop``, ``max_gen_toks`` (and its aliases, in lm-eval's order) ``gen_length``; ``do_sample=False``
    means temperature 0, ``do_sample=True`` without a temperature 1, as in transformers.
    """
    fields = dict(kwargs)
    until = fields.pop("until", None)
    if until is not None:
        texts = [until] if isinstance(until, str) else until
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise DecodingError(f"until={until!r}: expected a text or a list of texts that end an answer")
        fields["stop"] = [text for text in texts if text]
    lengths = [value for name in _LENGTHS if (value := fields.pop(name, None)) is not None]
    if lengths and "gen_length" not in fields:
        fields["gen_length"] = _count(lengths[0])
    do_sample = fields.pop("do_sample", None)
    if do_sample is False:
        fields["temperature"] = 0.0
    elif do_sample is True:
        fields.setdefault("temperature", 1.0)
    elif do_sample is not None:
        raise DecodingError(f"do_sample={do_sample!r}: expected true or false")
    return fields


def _count(value: Any) -> int:
    """lm-eval's length of an answer, which its task files also write as a text or a float."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise DecodingError(f"max_gen_toks={value!r}: expected a number of tokens") from None


class MessagesText(str):
    """Chat messages as JSON, where a harness passes only text on: for a model whose server has the chat template."""

    __slots__ = ()


class RequestBuilder:
    """Builds requests for one model; raises DecodingError. The user's ``decoding`` fields override a task's.
    ``stop_early``: stop at EOS if the text is cut there anyway, unless the fields say otherwise. ``notes`` collects the
    settings of tasks that the model's family does not have."""

    def __init__(
        self,
        model: LoadedModel,
        decoding: Mapping[str, Any],
        likelihood: Mapping[str, Any],
        seed: int,
        *,
        stop_early: bool = False,
    ) -> None:
        self._model, self._seed, self._stop_early = model, seed, stop_early
        lengths = {name: decoding[name] for name in ("gen_length", *_LENGTHS) if decoding.get(name) is not None}
        if any(value != next(iter(lengths.values())) for value in lengths.values()):
            given = ", ".join(f"{name}={value}" for name, value in lengths.items())
            raise DecodingError(f"{given}: these are names of one field, the length of an answer; give one of them")
        self.user = plain(decoding)
        self.likelihood = dict(likelihood)
        self.notes: list[str] = []
        self._known = set(type(model.resolve({})).model_fields)
        self._merged: dict[str, dict[str, Any]] = {}
        self._repeats: Counter[tuple[str, Any, int]] = Counter()
        if self.likelihood and model.capabilities.likelihood:
            model.resolve_likelihood(self.likelihood)
        for name, value in self.user.items():
            if name not in self._known:
                model.resolve({name: value})  # raises, naming the field and the known ones

    def forget(self) -> None:
        """Count repeats from 0 again."""
        self._repeats.clear()

    def decoding(self, task: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All fields requested for ``task``: the task's ``generation_kwargs``, then the user's fields; raises
        DecodingError."""
        cache_key = json.dumps([task, kwargs], sort_keys=True, default=str)
        if cache_key not in self._merged:
            of_task = {k: v for k, v in plain(kwargs).items() if k in self.user or self._has(task, k, v)}
            fields = {"gen_length": DEFAULT_GEN_LENGTH, **of_task, **self.user, **self._published(task)}
            try:
                resolved = self._model.resolve(fields)
            except DecodingError as error:
                raise DecodingError(f"task {task!r}: {error}") from error
            if self._stop_early:
                fields.setdefault("early_stop", resolved.text_after_eos == "cut")
            self._merged[cache_key] = fields
        return self._merged[cache_key]

    def _published(self, task: str) -> dict[str, Any]:
        """What a paper sets in ``task`` for the user's strategy, if it has a name alone, or with the fields that must
        be given; what the user sets of the answer's length, blocks and steps replaces all of these. A note says so."""
        strategy = self.user.get("strategy")
        given = dict(strategy) if isinstance(strategy, Mapping) else {"name": strategy}
        if not isinstance(name := given.get("name"), str):
            return {}
        kind = registry().get("strategy", name).load()
        if any(field != "name" and kind.settings().get(field) is not None for field in given):
            return {}
        published = kind.published_for(self._model.spec.family, task)
        if published is None:
            if kind.published:
                self._note(f"task {task!r}: {name} has no published settings for it; the defaults of its code are used")
            return {}
        own = {field: self.user[field] for field in published.answer if self.user.get(field) is not None}
        answer = {} if own else dict(published.answer)
        values = ", ".join(f"{field}={value}" for field, value in (answer | published.fields).items())
        missing = f"; {published.missing}" * bool(published.missing)
        self._note(f"task {task!r}: published settings of {name}: {values or 'the defaults of its code'}{missing}")
        return {**answer, "strategy": {**given, **published.fields}}

    def _note(self, text: str) -> None:
        self.notes += [text] if text not in self.notes else []

    def _has(self, task: str, name: str, value: Any) -> bool:
        """Does the family have this field? If not, it is left out, with a note unless it has no effect anyway."""
        if name in self._known:
            return True
        try:
            self._model.resolve({name: value})
        except DecodingError:
            if value not in _DISABLED.get(name, ()):
                self._note(f"task {task!r} sets {name}={value!r}, which this model's family does not have: ignored")
            return False
        return True

    def build(self, instance: Any, *, doc_id: int | str | None = None, want_greedy: bool = False) -> Request:
        """The request of one lm-eval ``Instance``, or of its next repeat: lm-eval passes the same instance ``repeats``
        times. ``doc_id`` is the document's index in its data set (lm-eval renumbers); raises UsageError or
        DecodingError."""
        task = instance.task_name or ""
        document = doc_id if doc_id is not None else instance.doc_id
        if document is None:  # an instance built by hand is identified by its prompt
            document = seeds.key(*map(str, instance.args))
        repeat = self._repeats[task, document, instance.idx]
        self._repeats[task, document, instance.idx] += 1
        rolling = instance.request_type == ROLLING
        kind: Literal["generate", "score"]
        suffix: str | None = None
        if instance.request_type == "generate_until":
            kind, target = "generate", None
            prompt, kwargs = (*instance.args, {})[:2]
            decoding = self.decoding(task, {name: value for name, value in kwargs.items() if name != MIDDLE})
            if (mark := kwargs.get(MIDDLE)) is not None:
                prompt, suffix = self._around(task, prompt, mark)
        else:
            if instance.request_type != "loglikelihood" and not (rolling and self._model.capabilities.rolling):
                raise undefined(task, instance.request_type)
            if not self._model.capabilities.likelihood:
                raise no_likelihoods(self._model.spec.engine, task)
            kind, decoding = "score", self.likelihood
            prompt, target = ("", instance.args[0]) if rolling else instance.args[:2]
        if isinstance(prompt, MessagesText):
            prompt = json.loads(prompt)
        texts = [None if rolling else prompt, target, decoding, *([] if suffix is None else [suffix])]
        content = json.dumps(texts, sort_keys=True, default=str)
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return Request(
            key=f"{task}/{document}/{instance.idx}/{repeat}/{digest}",
            kind=kind,
            prompt=prompt,
            target=target,
            decoding=decoding,
            seed=seeds.sample_key(self._seed, task, document, repeat),
            task=task,
            doc_id=document,
            repeat=repeat,
            want_greedy=want_greedy and kind == "score",
            rolling=rolling,
            suffix=suffix,
        )

    def _around(self, task: str, prompt: str, mark: str) -> tuple[str, str]:
        """What stands before and behind the answer in a rendered prompt with one mark between them.

        Raises:
            UsageError: the model sees nothing of what is behind its answer.
            DataError: a prompt without the mark, or with several.
        """
        if not self._model.capabilities.canvas or self._model.spec.attention != "bidirectional":
            raise UsageError(
                f"task {task!r} asks for the middle of a text, and {self._model.spec.family} does not see what is "
                "behind its answer; give a bidirectional model, or a task with the end of the text in its prompt "
                "(lm-eval's humaneval_single_line_infilling)"
            )
        parts = str(prompt).split(mark)
        if len(parts) != 2:
            raise DataError(f"task {task!r}: a prompt holds {mark!r} {len(parts) - 1} times; it must mark one place")
        return parts[0], parts[1]


def refuse_likelihoods(engine: str, tasks: Iterable[str]) -> None:
    """Raise UsageError for the first of these tasks, which need log-likelihoods, if a served engine gives none. No
    server is asked."""
    if engine == "native" or registry().get("engine", engine).load().capabilities.likelihood:
        return
    for task in tasks:
        raise no_likelihoods(engine, task)


def no_likelihoods(engine: str, task: str) -> UsageError:
    """The refusal of a task because the model generates only."""
    if engine == "native":
        return UsageError(f"task {task!r} needs log-likelihoods, which this model does not give: leave it out")
    return UsageError(
        f"task {task!r} needs log-likelihoods, which engine {engine} does not give: use --engine native for"
        " it, or a task that generates"
    )


def undefined(task: str, request_type: str) -> UsageError:
    """The refusal of a task because of its type of request."""
    return UsageError(
        f"task {task!r} needs {request_type}, log-likelihoods of whole texts, which this model does not give: leave the"
        " task out"
    )


def place(request: Request) -> tuple[str, Any, int, int]:
    """(task, document, index, repeat); the index is read from the request's key."""
    return request.task, request.doc_id, int(request.key.rsplit("/", 3)[1]), request.repeat
