"""An Open-dCoder checkpoint in its published layout, Qwen2's, with the trained weights of a tiny Dream, whose network
has the same shape and shift."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from dare_bench.loading import locate

DREAM = "tiny-dream"


def written(folder: Path, **changes: Any) -> Path:
    """The folder, with these fields of config.json changed. As published, it names no mask id; the tokenizer does."""
    shutil.copytree(locate(DREAM), folder)
    config = json.loads((folder / "config.json").read_text())
    for name in ("mask_token_id", "use_mrope"):
        config.pop(name, None)
    config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
