"""Completions that a served engine samples (``--rollout-engine``): what a method needs of it, and how it is asked.

After each update that a rollout follows, the weights are written as a checkpoint, with an adapter merged into its base,
and the engine loads them. Of an answer it returns finished tokens: log-probabilities, those of the policy that sampled
included, are computed by the learner. The first process alone talks to the engine, for all.

An engine stops at an EOS inside a block, and a block-causal learner scores whole blocks. So it is asked for the whole
canvas, which is cut behind the block of the first EOS, where a model in training stops too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from accelerate.utils import broadcast_object_list

from dare_bench.checkpoint_files import ADAPTER
from dare_bench.errors import DareError, DecodingError, EngineError, UsageError
from dare_bench.merging import merge
from dare_bench.protocols import LoadedModel
from dare_bench.trainers.policy import PolicyInTraining
from dare_bench.trainers.rl.algorithm import Algorithm
from dare_bench.trainers.rl.requirements import check_fields, check_lengths
from dare_bench.training.processes import first_process
from dare_bench.training.rollout_engine import engine_class
from dare_bench.training.rows import Tokens
from dare_bench.types import Generation, ModelSpec, Request, Sample

Result = TypeVar("Result")
FOLDER = "rollout-weights"
"""Where the weights are while the engine loads them, inside the output folder."""


def check_request(method: Algorithm, spec: ModelSpec) -> None:
    """Check the engine and the decoding fields of the rollout, before the engine's server is asked for anything. Raises
    UsageError: as :func:`~dare_bench.training.rollout_engine.engine_class`; DecodingError: a field that the engine
    never has, or that another setting determines."""
    kind = engine_class(str(method.options.rollout_engine))
    check_fields(method, spec)
    if "stop" in method.options.rollout:
        raise DecodingError("rollout stop: a served completion ends at an EOS or with its canvas; omit it")
    _checked(method, kind.check_fields)


def _checked(method: Algorithm, check: Callable[[Mapping[str, Any]], object]) -> None:
    try:
        check(method.served_request(()))
    except DecodingError as error:
        raise DecodingError(f"the rollout of {method.name}: {error}") from error


def check_engine(method: Algorithm, engine: LoadedModel, spec: ModelSpec, data: Tokens) -> None:
    """Check that the engine can answer every prompt in the way that the method needs. ``spec``: of the model in
    training. Raises UsageError: the engine serves another kind of model; a prompt is too long; DecodingError: a
    decoding value that its server cannot honor."""
    name, seen = engine.spec.engine, engine.spec
    family = spec.family.partition(".")[0]  # LLaDA2.0 and its successors are served as one
    if (seen.family, seen.attention) != (family, spec.attention):
        raise UsageError(
            f"the server of engine {name} holds a model of family {seen.family!r} with {seen.attention} attention, and "
            f"the model in training is of family {spec.family!r} with {spec.attention} attention; start it with this "
            "checkpoint, a diffusion model with --dllm-algorithm"
        )
    _checked(method, engine.resolve)
    check_lengths(method, seen, data)


class ServedSampler:
    """Answers the requests of rollouts by an engine that holds the weights of the last update."""

    def __init__(self, method: Algorithm, engine: LoadedModel, weights: PolicyInTraining) -> None:
        self.method, self.engine, self.weights = method, engine, weights
        self.loaded: int | None = None
        """The step whose weights the engine holds; None: whatever it was started with."""

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Answers in the order of the requests. Called by all processes together. Raises EngineError: in all processes:
        the engine did not load the weights, stopped answering, answered with other weights, or gave an answer that is
        not a completion."""
        with self.weights.phases.measure("rollout"):
            if (step := self.weights.version) != self.loaded:
                self._load(step)
            every = {request.key: request for part in self.weights.gather(list(requests)) for request in part}
            answers = from_first_process(lambda: self._answers(list(every.values()), step))
        return [Sample(request, *answers[request.key]) for request in requests]

    def _load(self, step: int) -> None:
        """Have the engine load the present weights, those after ``step``."""
        saved = self.weights.write_weights(f"{FOLDER}/saved")

        def load() -> None:
            try:
                self.engine.read_weights(whole_checkpoint(saved, self.method.spec.family))
            finally:
                shutil.rmtree(saved.parent, ignore_errors=True)

        from_first_process(load)
        self.loaded = step

    def _answers(self, requests: Sequence[Request], step: int) -> dict[str, tuple[Generation | None, str | None]]:
        """Answer or error by key, as the model in training would give them."""
        resolved = [replace(r, decoding=self.method.served_request(cast("Sequence[int]", r.prompt))) for r in requests]
        answers: dict[str, tuple[Generation | None, str | None]] = {}
        for sample in self.engine.generate(resolved):
            answer = sample.answer
            if isinstance(answer, Generation):
                if answer.weights_version != self.engine.weights_version:
                    raise EngineError(
                        f"engine {self.engine.spec.engine} answered with version {answer.weights_version} of the "
                        f"weights, and version {self.engine.weights_version} is the last; run the same command again"
                    )
                answer = replace(self._completion(answer, sample.request), weights_version=step)
            answers[sample.request.key] = cast("Generation | None", answer), sample.error
        return answers

    def _completion(self, answer: Generation, request: Request) -> Generation:
        """The answer up to the end of the block in which a model in training stops; raises EngineError."""
        spec, canvas = self.method.spec, request.decoding["gen_length"]
        tokens = answer.tokens[: self.method.completion_length]
        end = next((i + 1 for i, token in enumerate(tokens) if token in spec.eos_ids), None)
        length = canvas
        if end is not None and spec.block_length is not None:
            length = min(canvas, end + -(len(request.prompt) + end) % spec.block_length)
        strange = [token for token in answer.tokens if token == spec.mask or not 0 <= token < spec.vocab_size]
        if len(answer.tokens) < length or strange:
            problem = f"the token {strange[0]}" if strange else f"{len(answer.tokens)} tokens, which end inside a block"
            raise EngineError(
                f"engine {self.engine.spec.engine} answered with {problem}; a completion here has {length} tokens of "
                f"the vocabulary, without the mask {spec.mask}: are the server's blocks of {spec.block_length} tokens, "
                "and does it honor ignore_eos?"
            )
        text = None
        if (tokenizer := self.engine.tokenizer) is not None:
            read = tokens if end is None else tokens[: end - 1]
            text = tokenizer.decode(read, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return replace(
            answer,
            tokens=answer.tokens[:length],
            text=text,
            tokens_to_eos=end or len(tokens),
            finish_reason="length" if end is None else "eos",
        )


def whole_checkpoint(saved: Path, family: str) -> Path:
    """``saved``, or beside it the checkpoint with that adapter merged into its base, since engines take whole
    checkpoints. Raises what :func:`dare_bench.merging.merge` raises."""
    if not (saved / ADAPTER).is_file():
        return saved
    merged = saved.with_name("merged")
    shutil.rmtree(merged, ignore_errors=True)  # of a killed training
    with torch.random.fork_rng(devices=[]):  # opening an adapter draws its initial weights
        return merge(None, saved, merged, family=family)


def from_first_process(compute: Callable[[], Result]) -> Result:
    """What the first process computes, in all processes. Its error is raised in all, since the others would wait for
    it: EngineError."""
    outcome: list[Any] = [None, None]
    cause = None
    if first_process():
        try:
            outcome = [compute(), None]
        except DareError as error:
            outcome, cause = [None, str(error)], error
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise EngineError(outcome[1]) from cause
    result: Result = outcome[0]
    return result
