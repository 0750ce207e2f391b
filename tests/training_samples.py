"""Small training files in the columns that people bring, in ``data/training``; run this file to write them again.

The parquet files have DARE's own nesting (objectives of the field: data_source, prompt, reward_model, extra_info).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dare_bench.training.data import read_data
from dare_bench.training.rows import Data, Kind
from dare_bench.training.spec import TrainSpec

FOLDER = Path(__file__).parent / "data" / "training"

SYSTEM = {"role": "system", "content": "Answer with one number."}
CHAT: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]},
    {
        "messages": [
            SYSTEM,
            {"role": "user", "content": "2+3?"},
            {"role": "assistant", "content": "5"},
            {"role": "user", "content": "And twice that?"},
            {"role": "assistant", "content": "10"},
        ]
    },
    {"messages": [{"role": "user", "content": "Größe von „π“?"}, {"role": "assistant", "content": "3,14 ≈ π"}]},
]


def asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def answered(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


SFT: list[dict[str, Any]] = [
    {
        "data_source": "openai/gsm8k",
        "prompt": asked(question),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", "index": i, "question": question, "answer": answer},
    }
    for i, (question, answer, truth) in enumerate(
        [
            ("Tom has 3 apples and buys 4. How many?", "3 + 4 = 7\n#### 7", "7"),
            ("A box holds 6 eggs. How many in 5 boxes?", "6 * 5 = 30\n#### 30", "30"),
        ]
    )
]

RL: list[dict[str, Any]] = [
    {
        "data_source": "sudoku",
        "prompt": asked("Solve 1.3."),
        "reward_model": {"style": "rule", "ground_truth": "1234"},
        "extra_info": {"split": "train", "index": 0, "task": "sudoku", "puzzle": "1.3.", "numbers": None},
    },
    {
        "data_source": "countdown",
        "prompt": asked("Make 10 from 2, 5."),
        "reward_model": {"style": "rule", "ground_truth": "10"},
        "extra_info": {"split": "train", "index": 1, "task": "countdown", "puzzle": None, "numbers": "[2, 5]"},
    },
]

DPO: list[dict[str, Any]] = [
    {
        "data_source": "ultrafeedback",
        "prompt": asked(question),
        "chosen": answered(good),
        "rejected": answered(bad),
        "extra_info": {"split": "train", "index": i},
    }
    for i, (question, good, bad) in enumerate([("Capital of France?", "Paris.", "Lyon."), ("2*3?", "6", "5")])
]


def tables() -> dict[str, Any]:
    """File name -> pyarrow table."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    turns = pa.list_(pa.struct([("role", text), ("content", text)]))
    reward = pa.struct([("style", text), ("ground_truth", text)])
    about = [("split", text), ("index", number)]
    schemas = {
        "dare_sft.parquet": [
            ("data_source", text), ("prompt", turns), ("ability", text), ("reward_model", reward),
            ("extra_info", pa.struct([*about, ("question", text), ("answer", text)])),
        ],
        "dare_rl.parquet": [
            ("data_source", text), ("prompt", turns), ("reward_model", reward),
            ("extra_info", pa.struct([*about, ("task", text), ("puzzle", text), ("numbers", text)])),
        ],
        "dare_dpo.parquet": [
            ("data_source", text), ("prompt", turns), ("chosen", turns), ("rejected", turns),
            ("extra_info", pa.struct(about)),
        ],
    }  # fmt: skip
    rows = dict(zip(schemas, (SFT, RL, DPO), strict=True))
    return {name: pa.Table.from_pylist(rows[name], pa.schema(schema)) for name, schema in schemas.items()}


def write(folder: Path) -> None:
    import pyarrow.parquet as parquet

    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in CHAT]
    (folder / "chat.jsonl").write_text("".join(lines), encoding="utf-8")
    for name, table in tables().items():
        parquet.write_table(table, folder / name)


def read(data: object, kind: Kind = "examples", **fields: Any) -> Data:
    return read_data(TrainSpec(method="m", model="x", output_path="o", data=str(data), **fields), kind)


def lines(folder: Path, rows: list[Any], name: str = "rows.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


if __name__ == "__main__":
    write(FOLDER)
