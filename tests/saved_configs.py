"""The config.json of each family as several versions of transformers save it (``data/saved_configs.json``).

The published configuration classes are remote code. Those here have their constructors: they set the fields of the
reference checkpoint, and Dream, SDAR and Fast-dLLM v2 then validate the rotary positions. ``python
tests/saved_configs.py`` adds what the installed version writes.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).parent / "data" / "saved_configs.json"
PARITY = Path(__file__).parent / "parity"
VALIDATED = ("dream", "sdar", "sdar_moe", "fast_dllm_v2")
FAMILIES = (*VALIDATED, "llada", "llada_moe", "llada2", "llada22")
SHARED = ("_token_id", "tie_word_embeddings")
CHANGED = {"rope_theta": 123.0, "partial_rotary_factor": 0.25}
"""Values that are no class's default."""


def saved(version: str, family: str) -> dict:
    return json.loads(FILE.read_text())[version][family]


def main() -> None:
    import transformers

    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    written = {family: json.loads(_config(family).to_json_string()) for family in FAMILIES}
    lines = (
        f" {json.dumps(version)}: {{\n"
        + ",\n".join(f"  {json.dumps(family)}: {json.dumps(config)}" for family, config in configs.items())
        + "\n }"
        for version, configs in {**known, transformers.__version__: written}.items()
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _config(family: str):
    from transformers import PretrainedConfig

    fields = json.loads((PARITY / family / "config.json").read_text())
    about = {name: fields.pop(name) for name in ("architectures", "auto_map", "model_type")}
    for name in ("transformers_version", "torch_dtype", "dtype"):
        fields.pop(name, None)

    def __init__(self, **given):
        own = {name: given.pop(name, value) for name, value in fields.items()}
        # LLaDA's class gives all fields to its base class, the others those that the base class has.
        base = {name: own.pop(name) for name in fields if family == "llada" or name.endswith(SHARED)}
        for name, value in own.items():
            setattr(self, name, value)
        if family in VALIDATED:
            from transformers.modeling_rope_utils import rope_config_validation

            rope_config_validation(self)
        PretrainedConfig.__init__(self, **base, **given)

    kind = type("PublishedConfig", (PretrainedConfig,), {"__init__": __init__, "model_type": about.pop("model_type")})
    changed = {name: value for name, value in CHANGED.items() if name in fields}
    return kind.from_dict({**changed, **about, "torch_dtype": "float32"})


if __name__ == "__main__":
    main()
