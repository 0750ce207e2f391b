"""AIME 2025, eight answers to each of the 30 problems, averaged; rules decide, no judge.

The prompt is that of OpenCompass's ``aime2025_llmjudge_gen_5e9f4f``, the scoring that of its ``aime2024_gen_6e39a4``:
so DARE has it.
"""

from mmengine.config import read_base

with read_base():
    from opencompass.configs.datasets.aime2024.aime2024_gen_6e39a4 import aime2024_eval_cfg as aime2025_eval_cfg
    from opencompass.configs.datasets.aime2025.aime2025_llmjudge_gen_5e9f4f import (
        aime2025_infer_cfg,
        aime2025_reader_cfg,
    )

from opencompass.datasets import CustomDataset

aime2025_datasets = [
    {
        "abbr": "aime2025_repeat8",
        "type": CustomDataset,
        "path": "opencompass/aime2025",
        "reader_cfg": aime2025_reader_cfg,
        "infer_cfg": aime2025_infer_cfg,
        "eval_cfg": aime2025_eval_cfg,
        "n": 8,
    }
]
