"""Settings that change no answer of a run are named when it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from dare_bench.engine.evaluate import evaluate


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_what_has_no_effect_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"model": "tiny-llada", "tasks": "dare_sudoku", "limit": 1, "output_path": str(tmp_path), "progress": False}
    usual = evaluate(**given)  # type: ignore[arg-type]
    assert not warnings(caplog)
    more = {"decoding": {"steps": 30}, "likelihood": {"estimator": "fast"}}
    longer = evaluate(**given, **more)  # type: ignore[arg-type]
    assert warnings(caplog) == [
        "estimator=fast: without effect, since no task of this run computes log-likelihoods",
        "dare_sudoku: 30 steps for a block of 20 tokens: each step unmasks at least one token, so that the last 10 "
        "change nothing and are left out",
    ]
    first, second = ([sample["resps"] for sample in run.samples("dare_sudoku")] for run in (usual, longer))
    assert first == second


def test_decoding_of_tasks_that_compare_likelihoods_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1=", "choices": ["2", "3"], "answer": 0}\n')
    (tmp_path / "sums.yaml").write_text(
        "task: sums\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path / 'rows.jsonl'}}}}}\n"
        "test_split: test\noutput_type: multiple_choice\n"
        "doc_to_text: question\ndoc_to_choice: choices\ndoc_to_target: answer\ntarget_delimiter: ''\n"
    )
    evaluate(
        model="tiny-llada", tasks="sums", include_path=str(tmp_path), decoding={"steps": 4}, output_path=str(tmp_path),
        likelihood={"estimator": "fast"}, progress=False,
    )  # fmt: skip
    assert warnings(caplog) == ["steps=4: without effect, since no task of this run generates an answer"]


@pytest.mark.parametrize(
    ("family", "fields", "idle"),
    [
        ("llada", {"gen_length": 16, "block_length": 8, "steps": 20}, "10 steps for a block of 8 tokens"),
        ("llada", {"gen_length": 16, "block_length": 8, "steps": 16}, ""),
        ("a2d_mdlm", {"gen_length": 20, "block_length": 8, "steps": 28}, "10 steps for a block of 8 tokens"),
        ("a2d_bd3lm", {"gen_length": 16, "block_length": 8, "steps_per_block": 9}, "9 steps for a block of 8 tokens"),
        ("a2d_bd3lm", {"gen_length": 3, "block_length": 32, "steps": 3}, ""),
        ("sdar", {"gen_length": 16, "block_length": 4, "denoising_steps": 5}, "5 steps for a block of 4 tokens"),
        ("sdar", {"gen_length": 16, "block_length": 4}, ""),
        ("dream", {"gen_length": 16, "steps": 20}, ""),
    ],
)
def test_the_steps_of_a_family_that_unmask_nothing(family: str, fields: dict[str, int], idle: str) -> None:
    from dare_bench.registry import registry

    remark = registry().get("family", family).load().decoding(**fields).remark
    assert remark.startswith(idle) and bool(remark) == bool(idle)
