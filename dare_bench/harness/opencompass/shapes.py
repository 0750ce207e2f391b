"""The files that OpenCompass 0.5.4's loaders read below ``data/``, written from data sets in their hub columns.

Sources: ``opencompass/utils/datasets_info.py`` (data set id to local path) and the loaders, ``opencompass/datasets``.
A file is written only if the manifest has the rows for it, so that a loader never reads an empty or incomplete data
set.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dare_bench.errors import DataError
from dare_bench.harness.opencompass.manifest_rows import ManifestRows, Row

MMLU = ("cais/mmlu", "hails/mmlu_no_train")
CEVAL = ("ceval/ceval-exam",)
HELLASWAG = ("Rowan/hellaswag",)
ARC_C = ("allenai/ai2_arc:ARC-Challenge",)
ARC_E = ("allenai/ai2_arc:ARC-Easy",)
MATH = ("EleutherAI/hendrycks_math",)
MATH_500 = ("HuggingFaceH4/MATH-500",)
MBPP = ("google-research-datasets/mbpp:full",)
MBPP_SANITIZED = ("google-research-datasets/mbpp:sanitized",)
BBH = ("SaylorTwift/bbh", "lukaemon/bbh")
AIME_2024 = ("Maxwell-Jia/AIME_2024",)
OLYMPIAD = ("Hothan/OlympiadBench:OE_TO_maths_en_COMP",)

_TAGS = re.compile(r"\[.*?\]")


@dataclass(frozen=True)
class LocalFormat:
    """One entry of ``data/``: the hub ids of its data sets, and the function that writes what a manifest has of it."""

    ids: tuple[tuple[str, ...], ...]
    write: Callable[[ManifestRows, Path], None]


def _write_lines(path: Path, rows: Iterable[Row] | None, convert: Callable[[Row], Row] = dict) -> None:
    if rows is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(convert(row), ensure_ascii=False) + "\n" for row in rows)


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _write_table(path: Path, rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def _splits(ids: tuple[str, ...], files: Mapping[str, str], convert: Callable[[Row], Row] = dict) -> LocalFormat:
    """A format with one file of lines for each split (split: file name)."""

    def write(bench: ManifestRows, out: Path) -> None:
        for split, name in files.items():
            _write_lines(out / name, bench.rows(ids, split), convert)

    return LocalFormat((ids,), write)


def _mmlu(bench: ManifestRows, out: Path) -> None:
    for subject in bench.configs(*MMLU):
        for folder, split in (("dev", "dev"), ("val", "validation"), ("test", "test")):
            if rows := bench.rows(MMLU, split, subject):
                table = [[row["question"], *row["choices"], "ABCD"[row["answer"]]] for row in rows]
                _write_table(out / folder / f"{subject}_{folder}.csv", table)


def _ceval(bench: ManifestRows, out: Path) -> None:
    choices = ["id", "question", "A", "B", "C", "D"]
    headers = {"dev": [*choices, "answer", "explanation"], "val": [*choices, "answer"], "test": choices}
    for subject in bench.configs(*CEVAL):
        for split, header in headers.items():
            if rows := bench.rows(CEVAL, split, subject):
                table = [header, *([row[column] for column in header] for row in rows)]
                _write_table(out / "formal_ceval" / split / f"{subject}_{split}.csv", table)


def _untagged(text: str) -> str:
    """WikiHow text without its tags ``[header]``, ``[step]``, ...; ``[title]`` ends a sentence. The published HellaSwag
    prompts are made so (lm-eval and OpenCompass's file agree)."""
    return _TAGS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _hellaswag_row(row: Row) -> Row:
    context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    endings = [_untagged(ending).strip() for ending in row["endings"]]
    return {"query": _untagged(context), "choices": endings, "gold": int(row["label"])}


def _hellaswag(bench: ManifestRows, out: Path) -> None:
    _write_lines(out / "hellaswag.jsonl", bench.rows(HELLASWAG, "validation"), _hellaswag_row)
    # The pool of the 10-shot configs: already in OpenCompass's columns, because no hub split is that pool.
    _write_lines(out / "hellaswag_train_sampled25.jsonl", bench.rows(HELLASWAG, "opencompass_shots25"))


def _arc_row(row: Row) -> Row:
    choices = row["choices"]
    options = [{"text": text, "label": label} for text, label in zip(choices["text"], choices["label"], strict=True)]
    return {"id": row["id"], "question": {"stem": row["question"], "choices": options}, "answerKey": row["answerKey"]}


def _arc(bench: ManifestRows, out: Path) -> None:
    for ids, folder, stem in ((ARC_C, "ARC-c", "ARC-Challenge"), (ARC_E, "ARC-e", "ARC-Easy")):
        for split, name in (("validation", "Dev"), ("test", "Test")):
            _write_lines(out / folder / f"{stem}-{name}.jsonl", bench.rows(ids, split), _arc_row)


def _numbered(rows: Iterable[Row]) -> dict[str, Row]:
    return {str(number): row for number, row in enumerate(rows)}


def _math(bench: ManifestRows, out: Path) -> None:
    problems = [row for subject in bench.configs(*MATH) for row in bench.rows(MATH, "test", subject) or ()]
    if problems:
        _write_json(out / "math.json", _numbered(problems))
    if (rows := bench.rows(MATH_500, "test")) is not None:
        _write_json(out / "test_prm800k_500.json", _numbered(rows))  # MATHDataset
        _write_lines(out / "test_prm800k_500.jsonl", rows)  # CustomDataset


def _mbpp(bench: ManifestRows, out: Path) -> None:
    # The loaders cut by position: [:10] shots and [10:510] test, sanitized [:7] and [7:264]. So all splits or nothing.
    for ids, name in ((MBPP, "mbpp"), (MBPP_SANITIZED, "sanitized-mbpp")):
        parts = [bench.rows(ids, split) for split in ("prompt", "test", "validation", "train")]
        if all(part is not None for part in parts):
            rows = [row for part in parts for row in part or ()]
            _write_lines(out / f"{name}.jsonl", sorted(rows, key=lambda row: int(row["task_id"])))


def _bbh(bench: ManifestRows, out: Path) -> None:
    for task in bench.configs(*BBH):
        if (rows := bench.rows(BBH, "test", task)) is not None:
            _write_json(out / "data" / f"{task}.json", {"examples": rows})


def _aime_2024(bench: ManifestRows, out: Path) -> None:
    rows = bench.rows(AIME_2024, "opencompass")  # OpenCompass's wording, if the manifest has it
    if rows is None and (hub := bench.rows(AIME_2024, "train")) is not None:
        rows = [{"origin_prompt": row["Problem"], "gold_answer": str(row["Answer"])} for row in hub]
    _write_lines(out, rows)


def _olympiad(bench: ManifestRows, out: Path) -> None:
    if (rows := bench.rows(OLYMPIAD, "train")) is not None:
        # Implied by the subset's name; some copies of the data leave these columns out.
        same = {"language": "English", "subject": "Math", "question_type": "Open-ended", "modality": "Text-only"}
        _write_json(out / "OE_TO_maths_en_COMP.json", [{**same, **row} for row in rows])


LOCAL_FORMATS: dict[str, LocalFormat] = {
    "ARC": LocalFormat((ARC_C, ARC_E), _arc),
    "BBH": LocalFormat((BBH,), _bbh),
    "OlympiadBench": LocalFormat((OLYMPIAD,), _olympiad),
    "aime.jsonl": LocalFormat((AIME_2024,), _aime_2024),
    "aime2025": _splits(
        ("math-ai/aime25", "opencompass/AIME2025"),
        {"test": "aime2025.jsonl"},
        lambda row: {"question": row.get("problem", row.get("question")), "answer": str(row["answer"])},
    ),
    "ceval": LocalFormat((CEVAL,), _ceval),
    "gsm8k": _splits(("openai/gsm8k:main",), {"train": "train.jsonl", "test": "test.jsonl"}),
    "hellaswag": LocalFormat((HELLASWAG,), _hellaswag),
    "humaneval": _splits(("openai/openai_humaneval",), {"test": "human-eval-v2-20210705.jsonl"}),
    "ifeval": _splits(("google/IFEval",), {"train": "input_data.jsonl"}),
    "math": LocalFormat((MATH, MATH_500), _math),
    "mbpp": LocalFormat((MBPP, MBPP_SANITIZED), _mbpp),
    "mbpp_plus": _splits(
        ("evalplus/mbppplus",), {"test": "mbpp_plus.jsonl"}, lambda row: {**row, "text": row["prompt"]}
    ),
    "mmlu": LocalFormat((MMLU,), _mmlu),
    "mmlu_pro": _splits(("TIGER-Lab/MMLU-Pro",), {"test": "test.jsonl", "validation": "validation.jsonl"}),
    "triviaqa": _splits(
        ("mandarjoshi/trivia_qa:rc.nocontext",),
        {"train": "triviaqa-train.jsonl", "validation": "triviaqa-validation.jsonl"},
        lambda row: {"question": row["question"], "answer": row["answer"]["aliases"]},
    ),
}
"""By the first part of the path below ``data/``."""


def write(name: str, bench: ManifestRows, out: Path) -> None:
    """Writes ``data/<name>`` at ``out``; nothing if the manifest has none of its data sets; raises DataError."""
    try:
        LOCAL_FORMATS[name].write(bench, out)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        ids = ", ".join(hub_id for group in LOCAL_FORMATS[name].ids for hub_id in group)
        raise DataError(
            f"{bench.folder}: rows of {ids} are not in the hub's columns ({type(error).__name__}: {error});"
            f" OpenCompass's data/{name} cannot be made from them"
        ) from error


def remarks(local: str, bench: ManifestRows) -> list[str]:
    """Notes for readers of the scores on the data behind a path such as ``data/aime.jsonl``."""
    splits = ("train", "opencompass") if local == "data/aime.jsonl" else ()
    if [bench.rows(AIME_2024, split) is not None for split in splits] == [True, False]:
        return ["AIME 2024 has the wording of its hub data set, which differs a little from OpenCompass's file"]
    if local == "data/hellaswag" and bench.rows(HELLASWAG, "opencompass_shots25") is not None:
        return ["HellaSwag's shots are the manifest's split opencompass_shots25, which may not be OpenCompass's rows"]
    return []
