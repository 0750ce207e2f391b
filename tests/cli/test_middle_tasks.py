"""Tasks whose answer is the middle of a text: ``middle`` in their ``generation_kwargs``, and HumanEval's infilling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paths import ROOT
from require import need_package

import dare_bench
from dare_bench.errors import UsageError

need_package("lm_eval")
TASK = """
task: sums_middle
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{left}}}}<hole>{{{{right}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{middle: "<hole>", max_gen_toks: 3, until: [], do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
ROWS = [{"left": "12+34=", "right": " 1+1=", "answer": "46"}, {"left": "5", "right": "7=", "answer": "+"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/sums_middle.yaml").write_text(TASK.format(data=data))
    return tmp_path


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_the_answer_is_what_infill_writes(folder: Path, name: str) -> None:
    run = dare_bench.evaluate(
        model=name, tasks="sums_middle", include_path=str(folder / "tasks"), output_path=str(folder / "out")
    )
    model = dare_bench.load(name, device="cpu")
    mask = model.spec.mask
    for row, sample in zip(ROWS, run.samples("sums_middle"), strict=True):
        left, right = (model.loaded.encode(row[side]) for side in ("left", "right"))
        (whole,) = model.infill([[*left, *[mask] * 3, *right]], steps=3)
        ids = whole.tokens[len(left) : len(left) + 3]
        assert mask not in ids
        text = model.tokenizer.decode(ids).split("<|endoftext|>")[0] if model.tokenizer else ""
        assert sample["resps"][0][0].strip() == text.strip(), row
        assert "<hole>" in sample["arguments"]["gen_args_0"]["arg_0"], "the rendered prompt is kept"


def test_who_does_not_see_the_end_is_refused(folder: Path) -> None:
    with pytest.raises(
        UsageError, match=r"asks for the middle of a text, and sdar does not see what is behind its ans"
    ):
        dare_bench.evaluate(
            model="tiny-sdar", tasks="sums_middle", include_path=str(folder / "tasks"), output_path=str(folder / "out")
        )


@pytest.mark.slow
def test_humaneval_fills_the_middle_of_functions(folder: Path) -> None:
    rows = [
        {
            "prompt": "def add(a, b):\n",
            "suffix": "    return c\n",
            "canonical_solution": "    c = a + b\n",
            "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n",
            "entry_point": "add",
            "task_id": "SingleLineInfilling/HumanEval/0/L0",
        }
    ]
    (folder / "functions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tasks/mine.yaml").write_text(
        f"include: {ROOT}/tasks/humaneval_middle/humaneval_single_line_middle.yaml\ntask: mine\ndataset_path: json\n"
        f"dataset_name: null\ndataset_kwargs: {{data_files: {{test: {folder}/functions.jsonl}}}}\n"
    )
    run = dare_bench.evaluate(
        model="tiny-llada", tasks="mine", include_path=str(folder / "tasks"), output_path=str(folder / "out")
    )
    (sample,) = run.samples("mine")
    assert sample["filtered_resps"][0][0].startswith(rows[0]["prompt"])
    assert sample["filtered_resps"][0][0].endswith(rows[0]["suffix"])
    assert run.results["results"]["mine"]["pass_at_1,create_test"] == 0.0, "this model writes no programs"
