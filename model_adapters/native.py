"""A checkpoint opened natively: the shared network and loop behind the LoadedModel protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dare_bench.errors import DareError, DecodingError, brief
from dare_bench.log import log
from dare_bench.model_adapters.answer_text import response_text, through_eos
from dare_bench.model_adapters.backbone import DiffusionNetwork, Plan
from dare_bench.model_adapters.encoding import as_id, check_length, encode_prompt, logits_tokens
from dare_bench.model_adapters.family_rules import FamilyRules
from dare_bench.model_adapters.frames import Frames
from dare_bench.model_adapters.replay.counts import published_forwards
from dare_bench.model_adapters.replay.published import Stream
from dare_bench.model_adapters.sampling.drafts import IDLE, IDLE_TOKENS
from dare_bench.model_adapters.sampling.loop import denoise
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.stopping import StoppingPolicy
from dare_bench.model_adapters.scoring.likelihood_estimators import LikelihoodEstimator
from dare_bench.model_adapters.scoring.rolling import score_requests, window_requests
from dare_bench.model_adapters.scoring.scored_model import ScoredModel
from dare_bench.model_adapters.starting import end_of, start_of
from dare_bench.types import Capabilities, Decoding, Event, Generation, LoopStats, ModelSpec, Prompt, Request, Sample


class NativeModel(ScoredModel):
    """Implements :class:`dare_bench.protocols.LoadedModel`. Open one with :func:`dare_bench.load`."""

    capabilities = Capabilities(
        trajectory=True,
        logprobs=True,
        predictions=True,
        near_tie=True,
        canvas=True,
        end_forward=True,
        likelihood=True,
        rolling=True,
        row_keyed_randomness=True,
        weight_update=True,
    )

    def __init__(
        self,
        family: FamilyRules,
        network: DiffusionNetwork,
        tokenizer: Any | None,
        spec: ModelSpec,
        path: Path,
        adapter: Path | None = None,
        frames: Frames | None = None,
    ) -> None:
        super().__init__(network, tokenizer, spec, path, adapter)
        self.frames = frames
        self.family = family
        if spec.noise == "uniform":
            self.capabilities = replace(self.capabilities, predictions=False, canvas=False, end_forward=False)
        self._samplers: dict[str, tuple[ModelSpec, Sampler]] = {}

    # -- requests ------------------------------------------------------------------------------------------------

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; raises PromptError."""
        tokens = encode_prompt(prompt, self.tokenizer, self.spec, self.family.chat_template, self.path)
        self.family.check_prompt(tokens, self.network.config)
        return tokens

    def resolve(self, decoding: Mapping[str, Any]) -> Decoding:
        """All resolved decoding values; raises DecodingError."""
        return self.family.resolve(decoding, self.spec)

    def sampler(self, request: Request) -> tuple[ModelSpec, Sampler]:
        """The spec with the special ids of a generate request, and its sampler; raises DecodingError."""
        decoding = self.resolve(request.decoding) if request.resolved is None else request.resolved
        decoding = self.family.fitted(decoding, lambda: self.encode(request.prompt))
        if request.suffix is not None:
            decoding = _with_suffix(decoding, len(self.encode(request.suffix)))
        key = repr(decoding)
        if key not in self._samplers:
            spec = self.family.with_ids(self.spec, decoding)
            sampler = self.family.sampler(decoding, spec)
            if sampler.draft_steps and not IDLE_TOKENS.get(self.device.type, IDLE):
                log.warning("draft_steps=%d has no effect on a CPU: computing limits its forwards", sampler.draft_steps)
            self._samplers[key] = spec, sampler
        return self._samplers[key]

    def resolve_likelihood(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """All resolved likelihood settings; raises DecodingError."""
        return self.family.likelihood_settings(fields, self.spec)

    def likelihood_estimator(self) -> LikelihoodEstimator:
        """How the family estimates log-likelihoods."""
        return self.family.likelihood_estimator(self.spec)

    def greedy_sampler(self, n: int, spec: ModelSpec, cfg_scale: float = 0.0) -> Sampler:
        """The sampler behind ``is_greedy``, for n tokens."""
        return self.family.greedy_sampler(n, spec, cfg_scale)

    def forwards(self, request: Request) -> int:
        """Upper bound of a request's forward passes."""
        if request.kind == "generate":
            _, sampler = self.sampler(request)
            return sampler.most_forwards(len(self.encode(request.prompt)) if sampler.attention.causal else 0)
        if request.rolling:
            return sum(map(self._passes, window_requests(self, request)))
        return self._passes(request)

    def _passes(self, request: Request) -> int:
        """Upper bound of a pair's forward passes."""
        estimator, settings = self.likelihood_estimator(), self.resolve_likelihood(request.decoding)
        n = len(self.encode(request.target if isinstance(request.target, str) else list(request.target or ())))
        context = len(self.encode(request.prompt)) if estimator.reads_context else 0
        passes = estimator.passes(context, max(n, 1), settings)
        if request.want_greedy and estimator.causal:
            passes += 1
        elif request.want_greedy:
            spec = replace(self.spec, block_length=settings.get("block_length"))
            passes += self.greedy_sampler(max(n, 1), spec).most_forwards(context)
        return passes * (2 if estimator.guidance(settings) > 0 else 1)

    # -- generation ----------------------------------------------------------------------------------------------

    def row(self, request: Request) -> RowState:
        """The row of a request; raises DecodingError or PromptError."""
        spec, sampler = self.sampler(request)
        prompt = self.encode(request.prompt)
        lead = () if prompt or request.canvas is not None else sampler.lead
        prompt = [*prompt, *lead]
        check_length(prompt, sampler.gen_length, spec)
        given = request
        if request.suffix is not None:
            suffix = self.encode(request.suffix)
            given = replace(request, canvas=[*[spec.mask] * (sampler.gen_length - len(suffix)), *suffix])
        start = start_of(given, len(prompt), spec, sampler)
        return RowState(
            prompt,
            sampler,
            request.seed,
            spec.open_id,
            tag=request,
            tokenizer=self.tokenizer,
            stream=Stream(request.seed) if sampler.replays else None,
            given=start.given,
            start_step=start.step,
            start_forward=start.forward,
            end_forward=end_of(request, start, sampler),
            lead=len(lead),
            weights_version=self.weights_version,
        )

    def generate(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        """Answer generate requests; samples come back as each finishes.

        Rows whose mask id, grid or shift differs from that of the rows before them (overridden in a request) run in a
        separate loop.
        """
        rejected: list[Sample] = []

        def rows() -> Iterator[RowState]:
            for request in requests:
                try:
                    row = self.row(request)
                except DareError as error:
                    rejected.append(Sample(request, None, str(error)))
                    continue
                row.started = time.perf_counter()
                if stats is not None and stats.observe is not None:
                    row.events = _Observed(partial(stats.observe, request))
                yield row

        source = rows()
        for first, same in _alike(source):
            loop = denoise(
                self.network,
                same,
                mask_id=first.mask_id,
                vocab=self.spec.vocab_size,
                max_rows=max_rows or self.default_rows,
                device=self.device,
                stats=stats if stats is not None else LoopStats(),
                frames=self.frames,
            )
            for row in loop:
                yield from drain(rejected)
                yield Sample(row.tag, self._finish(row))
        yield from drain(rejected)

    def _finish(self, row: RowState) -> Generation:
        sampler, stopping = row.sampler, row.sampler.stopping
        tokens = row.response()
        if row.tag.suffix is not None:
            tokens = tokens[: sampler.gen_length - len(self.encode(row.tag.suffix))]
        end = through_eos(tokens, stopping.eos_ids)
        masks = [i for i, token in enumerate(tokens) if token == row.mask_id]
        if row.cut:
            tokens = row.behind_prompt(row.canvas)
        elif end is not None and (stopping.cut_at_eos or (stopping.early_stop and (not masks or masks[0] >= end))):
            tokens = tokens[:end]
        elif row.stopped:
            tokens = tokens[: row.stop - row.answer_begin]  # the rest was never decoded
        text, cut, texts = None, False, None
        if self.tokenizer is not None:
            text, cut = self._text(tokens, stopping)
            texts = [self._text(predicted, stopping)[0] for predicted in row.predictions]
        return Generation(
            tokens=tokens,
            text=text,
            nfe=(row.forwards - row.saved) * sampler.passes_per_forward,
            reference_nfe=published_forwards(row),
            finish_reason="stop" if cut else "eos" if end is not None else "length",
            prompt_tokens=len(row.prompt),
            tokens_to_eos=len(tokens) if end is None else end,
            residual_masks=sum(token == row.mask_id for token in tokens),
            tier="A" if self.spec.quantize else self.family.tier(sampler),
            seconds=time.perf_counter() - row.started,
            near_tie=row.near_tie if sampler.record_near_tie else None,
            trajectory=row.events if sampler.record_trajectory else None,
            weights_version=row.weights_version,
            predictions=row.predictions if sampler.record_predictions else None,
            prediction_texts=texts if sampler.record_predictions else None,
            end_step=row.step if row.cut else None,
        )

    def _text(self, tokens: Sequence[int], stopping: StoppingPolicy) -> tuple[str, bool]:
        keep = stopping.keep_text_after_eos
        return response_text(self.tokenizer, tokens, stopping.eos_ids, stopping.stop, keep)

    # -- likelihood and logits -----------------------------------------------------------------------------------

    def score(
        self, requests: Iterable[Request], *, max_rows: int | None = None, stats: LoopStats | None = None
    ) -> Iterator[Sample]:
        """Answer score requests."""
        return score_requests(self, requests, max_rows=max_rows, stats=stats if stats is not None else LoopStats())

    @torch.no_grad()
    def logits(self, ids: Sequence[int], block_length: int | None = None) -> torch.Tensor:
        """float32 [L, V]; row i scores token i. ``block_length``: attend block-causally on that grid instead of the
        family's default attention.

        Raises:
            DecodingError: a block length that is not a whole number of at least 1.
            PromptError: more tokens than the context limit, ids outside the vocabulary, no tokens.
            ModelOutputError: NaN logits.
        """
        grid = self.spec.block_length if block_length is None else as_id(block_length)
        if block_length is not None and (grid is None or grid < 1):
            raise DecodingError(f"block_length={brief(block_length)} must be a whole number of at least 1")
        tokens = logits_tokens(ids, self.encode, self.spec)
        plan = Plan((len(tokens),), grid)
        if self.spec.noise == "uniform":
            if block_length is not None:
                raise DecodingError(f"block_length={block_length}: {self.family.name} has no attention on a grid")
            plan = Plan((len(tokens),), clean=(0,))  # all of them are a canvas, without a prompt
        if self.spec.causal_prefix:  # each block reads the clean copy of those before it
            plan = Plan((2 * len(tokens),), grid, copies=2, causal_prefix=True)
            tokens = [*tokens, *tokens]
        packed = torch.tensor(tokens, dtype=torch.long, device=self.device)
        return self.of_tokens(self.network(packed, plan=plan).logits[: plan.tokens // plan.copies].float().cpu())


def _with_suffix(decoding: Any, suffix: int) -> Any:
    """The decoding of an answer of ``gen_length`` tokens before a suffix of so many: one block holds both.

    Raises:
        DecodingError: smaller blocks.
    """
    whole, block = decoding.gen_length + suffix, getattr(decoding, "block_length", None)
    if block is not None and block != decoding.gen_length:
        raise DecodingError(
            f"block_length={block} with gen_length={decoding.gen_length}: the middle of a text is decoded in one "
            "block; leave block_length out"
        )
    return decoding.model_copy(update={"gen_length": whole, **({} if block is None else {"block_length": whole})})


class _Observed(list[Event]):
    """The events of a row, each shown to ``observe`` as it is recorded."""

    def __init__(self, observe: Callable[[Event], None]) -> None:
        super().__init__()
        self.observe = observe

    def append(self, event: Event) -> None:
        super().append(event)
        self.observe(event)


def drain(rejected: list[Sample]) -> Iterator[Sample]:
    """Take samples out of a list that is filled meanwhile."""
    while rejected:
        yield rejected.pop(0)


def _alike(rows: Iterator[RowState]) -> Iterator[tuple[RowState, Iterator[RowState]]]:
    """Split a stream of rows where the mask id, the grid of attention or the token that a state predicts changes,
    pulling no further than needed."""
    following: list[RowState] = []

    def kind(row: RowState) -> tuple[int, int, bool | str]:
        attention = row.sampler.attention
        return row.mask_id, row.sampler.block_length if attention.causal else 0, attention.predicts_next

    def same(first: RowState) -> Iterator[RowState]:
        yield following.pop()
        for row in rows:
            if kind(row) != kind(first):
                following.append(row)
                return
            yield row

    for row in rows:
        following.append(row)
        while following:
            yield following[0], same(following[0])
