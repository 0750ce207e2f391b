"""The model of the Python API: prompts in, generations and likelihoods out, in the order given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from dare_bench.errors import DareError, PromptError, UsageError
from dare_bench.fingerprint import FileState, file_states
from dare_bench.keywords import DecodingKeywords, LikelihoodKeywords
from dare_bench.log import log
from dare_bench.protocols import LoadedModel
from dare_bench.seeds import prompt_key
from dare_bench.seen_lengths import unseen_length
from dare_bench.types import Event, Generation, Likelihood, LoopStats, ModelSpec, Prompt, Request

Target = str | Sequence[int]


class Model:
    """An opened checkpoint. Get one from :func:`dare_bench.load`.

    Attributes:
        loaded: the interface that the engine uses (:class:`dare_bench.protocols.LoadedModel`).
        spec: family, special ids, vocabulary, context limit, dtype, device.
        network: the ``PreTrainedModel`` (None for a served engine); peft, FSDP and ``save_pretrained`` work on it. The
            first look at it imports what transformers has for training, which takes a few seconds.
        tokenizer: the checkpoint's tokenizer, or None.
        path: the folder it was read from (None: it is on a server); adapter: that of the LoRA adapter on it, if any.
        checkpoint, load_settings: the arguments of ``load``.
        last_stats: what the last call cost (forwards, slot occupancy).
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        name: str,
        path: Path | None,
        checkpoint: str,
        load_settings: Mapping[str, Any],
        files: Sequence[FileState],
        adapter: Path | None = None,
    ) -> None:
        self.loaded, self.name, self.path, self.adapter = loaded, name, path, adapter
        self.checkpoint, self.load_settings, self._files = checkpoint, load_settings, files
        self.last_stats = LoopStats()
        self._lengths: set[int | None] = set()

    @property
    def spec(self) -> ModelSpec:
        return self.loaded.spec

    @property
    def network(self) -> Any | None:
        return self.loaded.pretrained()

    @property
    def tokenizer(self) -> Any | None:
        return self.loaded.tokenizer

    def is_as_opened(self) -> bool:
        """Are the files of its folders, its weights and its tokenizer unchanged since it was opened?"""
        return file_states(self.path, self.adapter) == self._files and self.loaded.is_as_opened()

    def __repr__(self) -> str:
        s = self.spec
        return f"Model({self.name!r}, family={s.family!r}, parameters={s.parameters:,}, {s.dtype} on {s.device})"

    def logits(self, ids: Sequence[int], block_length: int | None = None) -> Any:
        """float32 [L, V]; row i scores token i (a family's shift is already applied).

        ``block_length``: attend block-causally, in blocks from the first token on; None: the family's own attention.
        """
        return self.loaded.logits(ids, block_length)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        seed: int = 0,
        max_rows: int | None = None,
        watch: Callable[[int, Event], None] | None = None,
        **decoding: Unpack[DecodingKeywords],
    ) -> list[Generation]:
        """Answer prompts: strings, token lists or chat messages, of any mixed lengths, one Generation each, in order.

        Args:
            seed: with ``rng="ours"`` a draw depends on (seed, prompt tokens, number of earlier equal prompts), never on
                batch or order; with ``rng="reference"`` it seeds the published code's random numbers for each row.
            max_rows: rows that share a forward pass; changes speed and memory, not results.
            watch: called with the number of a prompt and each event of its trajectory, as the forward is made; needs
                ``trajectory=True``.
            decoding: the family's fields by its users' names (LLaDA: ``gen_length, steps, block_length, ...``;
                Dream: ``max_new_tokens, steps, alg, ...``; SDAR: ``remasking_strategy, confidence_threshold, ...``;
                LLaDA2: ``threshold, editing_threshold, ...``; autoregressive: ``top_k, top_p, repetition_penalty``; all
                in the family's README), ``temperature``, ``eos_id, eot_id, mask_id`` as overrides, and ``early_stop,
                text_after_eos, stop, rng, trajectory, predictions, near_tie``.

        Raises:
            DecodingError: an unknown field or an invalid value; PromptError: a prompt that does not fit.
            ModelOutputError: NaN logits. MemoryLimitError: one row alone does not fit.
        """
        items = _as_list(prompts)
        resolved = self.loaded.resolve(decoding)  # a bad field is an error even for no prompts
        self._warn_about_length(getattr(resolved, "gen_length", None))
        seen: Counter[tuple[int, ...]] = Counter()
        requests = []
        for i, prompt in enumerate(items):
            # A server that tokenizes is sent the prompt itself, whose characters then stand for its tokens.
            as_given = self.loaded.capabilities.messages
            tokens = tuple(json.dumps(prompt).encode() if as_given else self.loaded.encode(prompt))
            key = seed if decoding.get("rng") == "reference" else prompt_key(seed, tokens, seen[tokens])
            seen[tokens] += 1
            sent = prompt if as_given else tokens
            requests.append(Request(str(i), "generate", sent, decoding=decoding, seed=key, resolved=resolved))
        observe = None if watch is None else lambda request, event: watch(int(request.key), event)
        return self._answers(requests, max_rows, observe)

    def infill(
        self,
        canvases: str | Sequence[int] | Sequence[str | Sequence[int]],
        *,
        seed: int = 0,
        max_rows: int | None = None,
        **decoding: Unpack[DecodingKeywords],
    ) -> list[Generation]:
        """Fill the masks of canvases, which are token lists, or texts with the mask token: one Generation each, in
        order, whose ``tokens`` are the whole canvas.

        Blocks are counted from the first token, and one block is the whole canvas unless ``block_length`` is given.
        Text after an EOS stays, as a canvas may hold some.

        Args:
            seed, max_rows: as in :meth:`generate`.
            decoding: the family's fields, without ``gen_length``.

        Raises:
            UsageError: the model does not attend to what follows a mask.
            PromptError: an empty canvas, or one that does not fit. Others as :meth:`generate`.
        """
        if not self.loaded.capabilities.canvas or self.spec.attention != "bidirectional":
            raise UsageError(
                f"{self.name} is of the family {self.spec.family}, which does not attend to what follows a mask, so it "
                "cannot infill; give a bidirectional model (a2d_mdlm, dream, illada, llada, llada_moe, mdlm, "
                "open_dcoder)"
            )
        if given := {"gen_length", "max_new_tokens"} & decoding.keys():
            raise UsageError(f"{sorted(given)[0]} has no meaning in infill: a canvas has its length; leave it out")
        requests = []
        for i, canvas in enumerate(_as_list(canvases)):
            tokens = self.loaded.encode(canvas)
            if not tokens:
                raise PromptError(f"canvas {i + 1} is empty; give tokens, with the mask id where one is to be filled")
            fields = {"early_stop": False, "text_after_eos": "keep", **decoding, "gen_length": len(tokens)}
            key = seed if decoding.get("rng") == "reference" else prompt_key(seed, tuple(tokens), i)
            requests.append(Request(str(i), "generate", (), decoding=fields, seed=key, canvas=tokens))
        return self._answers(requests, max_rows)

    def _warn_about_length(self, length: int | None) -> None:
        """Log, once for each length, if the training of the checkpoint has not seen canvases of a length."""
        if length not in self._lengths:
            self._lengths.add(length)
            if warning := unseen_length(self.adapter or self.path, length):
                log.warning("%s", warning)

    def loglikelihood(
        self,
        pairs: Iterable[tuple[Prompt, Target]],
        *,
        estimator: str = "auto",
        seed: int = 0,
        max_rows: int | None = None,
        want_greedy: bool = True,
        **fields: Unpack[LikelihoodKeywords],
    ) -> list[Likelihood]:
        """log p(target | context) in nats for each pair of strings or token lists, in order.

        White space at the end of a context string is scored as the start of the target, as lm-eval does it.

        Args:
            estimator: ``auto`` (exact up to 7 target tokens, or 7 in every block where attention has blocks, or if the
                model is autoregressive; else the reference's draws), ``exact``, ``reference``, ``fast`` (the same bound
                in fewer passes) or parts of it, ``adaptive`` (draws until it is known which of the pairs, as choices of
                one document, is the best), ``chain`` (docs/likelihoods.md).
            seed: seeds the draws, for each pair.
            want_greedy: also decode for ``is_greedy``, a forward pass for each target token. False: it is None.
            fields: the family's fields by their users' names (``mc_num, batch_size``; LLaDA: ``cfg_scale``; Dream:
                ``nll_type, log_type, sampling_eps, classifier_free_guidance``; families with blocks: ``block_length``).
                ``batch_size`` sets the stratification of the draws, not the batch on the device: that is max_rows.

        Raises:
            DecodingError: an unknown field or estimator; PromptError: a pair that does not fit or an empty target.
        """
        settings = {"estimator": estimator, **fields}
        self.loaded.resolve_likelihood(settings)
        requests = [
            Request(str(i), "score", context, target=target, decoding=settings, seed=seed, want_greedy=want_greedy)
            for i, (context, target) in enumerate(map(_as_pair, pairs))
        ]
        return self._answers(requests, max_rows)

    def save(self, path: str | Path) -> None:
        """Write the published layout, so that the original code loads it; of a model with an adapter, only the adapter,
        in peft's layout. Raises SaveError."""
        self.loaded.save(path)

    def _answers(
        self, requests: list[Request], max_rows: int | None, observe: Callable[[Request, Event], None] | None = None
    ) -> list[Any]:
        if max_rows is not None and max_rows < 1:
            raise UsageError(f"max_rows={max_rows} must be at least 1")
        self.last_stats = LoopStats(observe=observe)
        if not requests:
            return []
        compute = self.loaded.generate if requests[0].kind == "generate" else self.loaded.score
        answers: dict[str, Any] = {}
        for sample in compute(requests, max_rows=max_rows, stats=self.last_stats):
            if sample.error is not None:
                raise PromptError(f"prompt {int(sample.request.key) + 1} of {len(requests)}: {sample.error}")
            answers[sample.request.key] = sample.answer
        if len(answers) != len(requests):
            raise DareError(f"{len(requests)} requests, {len(answers)} answers; this is a bug in the model's family")
        return [answers[request.key] for request in requests]


def _as_pair(pair: Any) -> tuple[Prompt, Target]:
    """Context and target; raises PromptError unless it is a pair."""
    if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
        raise PromptError(f"pair {repr(pair)[:60]}: give a list of (context, target) pairs")
    return pair[0], pair[1]


def _as_list(prompts: Any) -> list[Prompt]:
    """One prompt or several as a list; raises PromptError for anything else."""
    if isinstance(prompts, str):
        return [prompts]
    try:
        items = list(prompts)
    except TypeError:
        raise PromptError(
            f"prompts={repr(prompts)[:60]}: give text, token ids, chat messages, or a list of them"
        ) from None
    if not items:
        return []
    first = items[0]
    is_token = hasattr(first, "__index__") and not getattr(first, "ndim", 0)  # int, numpy or torch scalar
    return [items] if is_token or (isinstance(first, dict) and "role" in first) else items
