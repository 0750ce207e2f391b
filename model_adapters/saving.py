"""Back to the published layout: config and companion files as they came, weights under their published names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from dare_bench.errors import SaveError
from dare_bench.model_adapters.checkpoint import INDEX
from dare_bench.model_adapters.quiet import quiet_transformers


def save_checkpoint(network: Any, source: Path, target: Path) -> None:
    """Write ``network`` to ``target``. Companion files (tokenizer, template, generation config, the published Python
    files) are copied from ``source``, and config.json keeps its published fields, so the original code loads the
    result. Raises SaveError.
    """
    try:
        if target.resolve() == source.resolve():
            raise SaveError(f"{target} is the folder the model was opened from; save to another one")
        target.mkdir(parents=True, exist_ok=True)
        with quiet_transformers():
            network.save_pretrained(str(target))
        for file in sorted(source.iterdir()):
            if (
                file.is_file()
                and file.name not in ("config.json", INDEX)
                and file.suffix not in (".safetensors", ".bin")
            ):
                shutil.copyfile(file, target / file.name)
        original = json.loads((source / "config.json").read_text())
        saved = json.loads((target / "config.json").read_text())
        for name in ("torch_dtype", "dtype"):
            if name in original:
                original[name] = saved.get("dtype", original[name])
        (target / "config.json").write_text(json.dumps(original, indent=2) + "\n")
    except OSError as error:
        raise SaveError(f"cannot save the checkpoint to {target}: {error.strerror or error}") from error
