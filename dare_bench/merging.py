"""Merging an adapter into its base: a checkpoint in the published layout, which the published code opens."""

from __future__ import annotations

import shutil
from pathlib import Path

from dare_bench.checkpoint_files import ADAPTER, read_config
from dare_bench.errors import UsageError
from dare_bench.loading import base_and_adapter, load, locate
from dare_bench.log import log
from dare_bench.runs.lineage import FILE as LINEAGE


def merge(
    model: str | Path | None,
    adapter: str | Path,
    output_path: str | Path,
    *,
    dtype: str | None = None,
    device: str | None = "cpu",
    family: str | None = None,
) -> Path:
    """Write the base model with an adapter's update added to its weights.

    Args:
        model: the base; None: the one that the adapter names.
        dtype: of the merged weights; None: the base's. Merged and unmerged models differ by the rounding of the sum to
            it (``float32``: only by the order of sums).

    Returns:
        The folder of the merged checkpoint, with the adapter's ``lineage.json`` if it has one.

    Raises:
        CheckpointError: base or adapter is missing, or they do not fit.
        UsageError: ``output_path`` holds a checkpoint already; an unknown dtype or device.
        SaveError: it cannot be written.
    """
    out = Path(output_path)
    if existing := next((name for name in ("config.json", ADAPTER, LINEAGE) if (out / name).exists()), None):
        raise UsageError(f"{out} already contains a model ({existing}); choose another output folder")
    base, adapter_name = base_and_adapter(adapter) if model is None else base_and_adapter(model, adapter)
    if adapter_name is None:
        raise UsageError(
            f"{adapter} is not an adapter folder, because it has a config.json; give the base and an adapter"
        )
    config = read_config(locate(base))
    dtype = dtype or config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    opened = load(base, adapter=adapter_name, dtype=dtype, device=device, family=family)
    opened.loaded.merge_adapter()
    opened.save(out)
    if (lineage := locate(adapter_name) / LINEAGE).is_file():
        shutil.copyfile(lineage, out / LINEAGE)
    if dtype not in ("float32", "float64"):
        log.warning("%s: the merged weights were rounded to %s; give dtype float32 for a smaller rounding", out, dtype)
    return out
