"""From lm-eval's instances to requests: what is asked, by which decoding fields, under which key.

Used by both ways in: ours (:mod:`dare_bench.harness.lm_eval.source`) and lm-eval's (:mod:`dare_bench.lm_eval`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dare_bench import seeds
from dare_bench.errors import DecodingError, UsageError
from dare_bench.protocols import LoadedModel
from dare_bench.types import Request

DEFAULT_GEN_LENGTH = 256
"""lm-eval's length of an answer when the task says nothing."""
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
# Settings of other samplers at the values that switch them off: leaving these out changes nothing.
_IDLE: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1, None),
    "top_k": (0, -1, None),
    "min_p": (0, None),
    "num_beams": (1, None),
    "num_return_sequences": (1, None),
    "repetition_penalty": (1, None),
    "use_cache": (True, False, None),
}


def plain(words: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's generation words as decoding fields; words it does not know stay as they are.

    ``until`` gives ``stop``, ``max_gen_toks`` (and its aliases, in lm-eval's order) ``gen_length``; ``do_sample=False``
    means temperature 0, ``do_sample=True`` without a temperature 1, as in transformers.

    Raises:
        DecodingError: a value that none of these can have.
    """
    fields = dict(words)
    until = fields.pop("until", None)
    if until is not None:
        texts = [until] if isinstance(until, str) else until
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise DecodingError(f"until={until!r}: expected a text or a list of texts that end an answer")
        fields["stop"] = [text for text in texts if text]
    lengths = [value for name in _LENGTHS if (value := fields.pop(name, None)) is not None]
    if lengths and "gen_length" not in fields:
        fields["gen_length"] = _count(lengths[0])
    sampled = fields.pop("do_sample", None)
    if sampled is False:
        fields["temperature"] = 0.0
    elif sampled is True:
        fields.setdefault("temperature", 1.0)
    elif sampled is not None:
        raise DecodingError(f"do_sample={sampled!r}: expected true or false")
    return fields


def _count(value: Any) -> int:
    """lm-eval's length of an answer, which its task files also write as a text or a float."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise DecodingError(f"max_gen_toks={value!r}: expected a number of tokens") from None


class RequestBuilder:
    """Builds requests for one model.

    Args:
        decoding: the user's decoding fields (command line); they win over a task's.
        likelihood: the user's likelihood fields.
        seed: the run's sampling seed.
        stop_early: stop at EOS where the text is cut there anyway, unless the fields say otherwise.

    ``notes`` collects what a task asked for that the model's family does not have.

    Raises:
        DecodingError: a user's field, of decoding or likelihoods, that the family does not have.
    """

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
        self._asked: Counter[tuple[str, Any, int]] = Counter()
        self._likelihood_checked = False
        if self.likelihood and model.capabilities.likelihood:
            model.resolve_likelihood(self.likelihood)
        for name, value in self.user.items():
            if name not in self._known:
                model.resolve({name: value})  # raises, naming the field and those there are

    def forget(self) -> None:
        """Count repeats anew: what follows is asked for the first time."""
        self._asked.clear()

    def decoding(self, task: str, words: Mapping[str, Any]) -> dict[str, Any]:
        """All fields asked for a request of ``task``: the task's words, then the user's.

        Raises:
            DecodingError: together they cannot be; the message names the task.
        """
        mark = json.dumps([task, words], sort_keys=True, default=str)
        if mark not in self._merged:
            wanted = plain(words)
            own = {name: value for name, value in wanted.items() if name in self.user or self._has(task, name, value)}
            fields = {"gen_length": DEFAULT_GEN_LENGTH, **own, **self.user}
            try:
                resolved = self._model.resolve(fields)
            except DecodingError as error:
                raise DecodingError(f"task {task!r}: {error}") from error
            if self._stop_early:
                fields.setdefault("early_stop", resolved.text_after_eos == "cut")
            self._merged[mark] = fields
        return self._merged[mark]

    def _has(self, task: str, name: str, value: Any) -> bool:
        """Does the family have this field? If not, it is left out, with a note unless it does nothing anyway."""
        if name in self._known:
            return True
        try:
            self._model.resolve({name: value})
        except DecodingError:
            if value not in _IDLE.get(name, ()):
                note = f"task {task!r} sets {name}={value!r}, which this model's family does not have: left out"
                self.notes += [note] if note not in self.notes else []
            return False
        return True

    def build(
        self,
        instance: Any,
        *,
        doc_id: int | str | None = None,
        want_greedy: bool = False,
    ) -> Request:
        """The request of one lm-eval ``Instance``, or of one more repeat of it: lm-eval hands over the same instance
        ``repeats`` times, so call this once for each time.

        Args:
            doc_id: the document's place in its data set (lm-eval renumbers under ``--samples``).
        """
        task = instance.task_name or ""
        document = doc_id if doc_id is not None else instance.doc_id
        if document is None:  # an instance made by hand: its prompt is what it is
            document = seeds.key(*map(str, instance.args))
        repeat = self._asked[task, document, instance.idx]
        self._asked[task, document, instance.idx] += 1
        make = self._MAKERS.get(instance.request_type)
        if make is None:
            raise undefined(task, instance.request_type)
        kind, prompt, target, decoding = make(self, task, instance.args)
        mark = json.dumps([prompt, target, decoding], sort_keys=True, default=str)
        digest = hashlib.sha256(mark.encode()).hexdigest()[:8]
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
        )

    def _generate(self, task: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        context, words = args[0], args[1] if len(args) > 1 else {}
        return "generate", context, None, self.decoding(task, words)

    def _score(self, task: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self._likelihood_checked:
            if not self._model.capabilities.likelihood:
                raise UsageError(f"task {task!r} needs log-likelihoods, which this model does not give: leave it out")
            self._model.resolve_likelihood(self.likelihood)
            self._likelihood_checked = True
        return "score", args[0], args[1], self.likelihood

    _MAKERS: Mapping[str, Callable[..., tuple[Any, ...]]] = {"generate_until": _generate, "loglikelihood": _score}


def undefined(task: str, asked: str) -> UsageError:
    """The refusal of a task for the kind of request that it asks."""
    return UsageError(
        f"task {task!r} asks for {asked}, which a masked diffusion model does not define (it has no probability of a"
        " text from left to right): leave the task out"
    )


def place(request: Request) -> tuple[str, Any, int, int]:
    """(task, document, index, repeat); the index is read from the request's key."""
    return request.task, request.doc_id, int(request.key.rsplit("/", 3)[1]), request.repeat
