"""Trainings of the bundled checkpoints, and the families that tests train."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golden import PARITY, special_ids
from safetensors.torch import load_file

from dare_bench.loading import load
from dare_bench.protocols import LoadedModel

FIELDS: dict[str, Any] = {
    "method": "sft",
    "model": "tiny-llada-base",
    "task": "dare_sudoku",
    "rows": 200,
    "learning_rate": 1e-3,
    "per_device_train_batch_size": 8,
    "max_steps": 4,
    "report_to": (),
}


def train(out: Path, **more: Any) -> Any:
    from dare_bench.training.run import train

    return train(**{**FIELDS, "output_path": str(out), **more})


def interrupted(whole: Path, out: Path, step: int) -> None:
    """A copy of a finished training, as a kill after the checkpoint of a step leaves it."""
    shutil.copytree(whole, out)
    for folder in out.glob("checkpoint-*"):
        if int(folder.name.partition("-")[2]) > step:
            shutil.rmtree(folder)
    for file in ("lineage.json", "model.safetensors", "trainer_state.json"):
        (out / file).unlink()
    (out / "train.json").write_text((out / "train.json").read_text().replace('"complete"', '"running"'))


def difference(left: Path, right: Path, name: str = "model.safetensors") -> float:
    """The largest difference of any weight of two checkpoints."""
    a, b = load_file(left / name), load_file(right / name)
    assert a.keys() == b.keys()
    return max(float((a[key] - b[key]).abs().max()) for key in a)


def lines(file: Path, rows: Sequence[dict[str, str]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


FAMILIES = ("llada", "dream", "sdar", "llada2", "fast_dllm_v2")
UNBUNDLED = ("fast_dllm_v2",)


def opened(family: str) -> LoadedModel:
    """A new model, in float32: a test may change its weights."""
    if family in UNBUNDLED:
        return load(PARITY / family, device="cpu", dtype="float32", **special_ids(family)).loaded
    return load(f"tiny-{family}-base", device="cpu", dtype="float32").loaded
