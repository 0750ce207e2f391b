"""Our models in lm-eval.

Importing this module registers the model class ``dare``::

    import dare_bench.lm_eval, lm_eval
    lm_eval.simple_evaluate(model="dare", model_args="pretrained=tiny-llada,gen_length=64", tasks=["gsm8k"], limit=8)

lm-eval's own command only knows imported models, so this module also runs the command::

    python -P -m dare_bench.lm_eval run --model dare --model_args pretrained=tiny-llada,gen_length=64 --tasks gsm8k

See :class:`DareLM` for the settings. ``dare-bench eval`` also resumes, redirects data, leaves failed documents out of
the scores and records its settings.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string

from dare_bench.engine.journal import Journal
from dare_bench.engine.progress import progress_display
from dare_bench.engine.queue import Queue
from dare_bench.errors import DareError, UsageError, suggestion
from dare_bench.harness.common.requests import RequestBuilder
from dare_bench.harness.lm_eval.lm import AnsweringLM
from dare_bench.loading import load
from dare_bench.protocols import LoadedModel
from dare_bench.safe_path import safe_path
from dare_bench.types import OpeningSettings, Sample

__all__ = ["DareLM", "main"]

log = logging.getLogger(__name__)


@register_model("dare")
class DareLM(AnsweringLM):
    """``lm_eval.simple_evaluate(model="dare", model_args="pretrained=DIR,dtype=float32,steps=32", ...)``

    Args:
        pretrained: a checkpoint folder, hub id or bundled name.
        batch_size: rows at a time (``auto``: the model decides). Results do not depend on it.
        device: as for :func:`dare_bench.load`.
        seed: of the sampler's randomness.
        is_greedy: False skips computing it for log-likelihoods (lm-eval always requests it, few metrics read it).
        settings: fields of :func:`dare_bench.load`, decoding fields and likelihood fields (the likelihood field
            ``batch_size`` is called ``mc_batch_size``). Decoding fields given here take precedence over those of a task
            and of ``--gen_kwargs``.

    Raises:
        UsageError: a setting that is none of these. CheckpointError: as ``load``.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        seed: int = 1234,
        is_greedy: bool = True,
        **settings: Any,
    ) -> None:
        opening = {name: settings.pop(name) for name in _LOAD_FIELDS & set(settings)}
        super().__init__(load(pretrained, device=device, **opening).loaded, self._through_queue)
        decoding, likelihood = _sorted_fields(self.model, settings)
        self._builder = RequestBuilder(self.model, decoding, likelihood, int(seed), stop_early=True)
        rows = str(batch_size or max_batch_size or "auto")
        self._rows = int(rows) if rows.isdigit() else max_batch_size
        self._is_greedy = is_greedy
        self._warned: set[str] = set()

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> DareLM:
        """lm-eval's constructor. ``model_args`` take precedence over what lm-eval adds. Its command adds ``cuda:0``
        even without a GPU; as with lm-eval's own models, the CPU is used then."""
        extra = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if str(extra.get("device", "")).startswith("cuda") and not torch.cuda.is_available():
            log.warning("lm-eval asks for %s, but PyTorch sees no GPU here: running on the CPU", extra["device"])
            extra["device"] = "cpu"
        return cls(**{**extra, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> DareLM:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def _through_queue(self, instances: Sequence[Any]) -> list[Sample]:
        """One sample for each instance, in order, from the engine's queue with a temporary journal.

        Raises:
            DareError: a request failed, which lm-eval would score as wrong.
        """
        self._builder.forget()
        requests = [self._builder.build(instance, want_greedy=self._is_greedy) for instance in instances]
        self._warn()
        if not requests:
            return []
        with TemporaryDirectory(prefix="dare-bench-lm-eval-") as folder, Journal(Path(folder)) as journal:
            queue = Queue(self.model, journal, max_rows=self._rows, progress=progress_display(True))
            samples = queue.answer(requests)
        for sample in samples:
            if sample.error is not None:
                raise DareError(f"task {sample.request.task!r}, document {sample.request.doc_id}: {sample.error}")
        return samples

    def _warn(self) -> None:
        for note in [*self._builder.notes, *self.notes]:
            if note not in self._warned:
                self._warned.add(note)
                log.warning("%s", note)


_LOAD_FIELDS = {"engine", "engine_url", "engine_args", *OpeningSettings.model_fields} - {"device"}


def _sorted_fields(model: LoadedModel, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(decoding fields, likelihood fields); a name that is both, such as ``cfg_scale``, applies to both."""
    # lm-eval reserves the name batch_size
    settings = {"batch_size" if name == "mc_batch_size" else name: value for name, value in settings.items()}
    known = {*type(model.resolve({})).model_fields, "until", "max_gen_toks", "do_sample"}
    scoring = set(model.resolve_likelihood({})) if model.capabilities.likelihood else set()
    for name in settings:
        if name not in known | scoring:
            near = suggestion(name, known | scoring | _LOAD_FIELDS)
            raise UsageError(f"model_args: {name!r} is not a field of load, decoding or likelihoods{near}")
    decoding = {name: value for name, value in settings.items() if name in known}
    likelihood = {name: value for name, value in settings.items() if name in scoring}
    if likelihood:
        model.resolve_likelihood(likelihood)
    return decoding, likelihood


def main() -> int:
    """lm-eval's command; returns the exit code."""
    from lm_eval.__main__ import cli_evaluate

    try:
        with safe_path():
            cli_evaluate()
    except DareError as error:
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
