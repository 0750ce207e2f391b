"""``dare-bench train --dry-run``: what it prints, and that it neither downloads nor writes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from dare_bench.cli import main

COUPLED = ("coupled_grpo", "--model", "GSAI-ML/LLaDA-8B-Instruct", "--task", "gsm8k", "--peft", "lora", "--fsdp")
DOCS = Path(__file__).parents[2] / "docs" / "scale.md"


def said(capsys: pytest.CaptureFixture[str], *words: str, verb: str = "train") -> str:
    with pytest.raises(SystemExit) as left:
        main([verb, *words])
    output = capsys.readouterr()
    assert not left.value.code, output.err
    return output.out


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    with pytest.raises(SystemExit) as left:
        main(["train", *words])
    assert left.value.code == code
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("dare_bench.loading._from_hub", "dare_bench.training.data.open_hub"):
        monkeypatch.setattr(name, lambda *_: pytest.fail("it was fetched"))
    monkeypatch.chdir(tmp_path)


def test_the_docs_show_what_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = said(capsys, *COUPLED, "--dry-run", "--processes", "8", "--max-steps", "500")
    assert shown in DOCS.read_text()
    assert not list(tmp_path.iterdir())


def test_the_docs_show_two_nodes_an_evaluation_and_a_sweep(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = DOCS.read_text()
    nodes = ("--processes", "16", "--max-steps", "500", "--gradient-checkpointing")
    lines = said(capsys, *COUPLED, "--dry-run", *nodes).splitlines()
    shown = [line for line in lines if line.startswith(("peak in", "seconds of"))]
    assert len(shown) == 2 and "\n".join(shown) in page
    (tmp_path / "rates.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    estimate = said(capsys, "rates.yaml", "--output-path", "out", "--dry-run", verb="sweep")
    costs = {line.partition("[to do] ")[2] for line in estimate.splitlines()} - {""}
    assert len(costs) == 2 and all(cost.removesuffix(" (from the recipe)") in page for cost in costs)
    evaluation = said(capsys, "--recipe", "llada-8b-instruct/gsm8k", "--dry-run", verb="eval")
    assert evaluation[evaluation.index("llada-8b-instruct/gsm8k: estimate") :] in page


def test_under_torchrun_its_processes_are_counted_and_the_first_one_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sft = ("sft", "--model", "tiny-llada-base", "--task", "dare_sudoku", "--max-steps", "3", "--dry-run")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert said(capsys, *sft, "--gpu", "H200").startswith("sft on 4 x H200 SXM: ")
    monkeypatch.setenv("RANK", "1")
    assert said(capsys, *sft) == ""


def test_a_local_checkpoint_and_its_settings_in_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("model: tiny-llada-base\ntask: dare_sudoku\nbf16: true\nmax_steps: 3\n")
    shown = said(capsys, "sft", "-C", "train.yaml", "--dry-run")
    assert "tiny-llada-base: 898,688 parameters" in shown
    assert "items with rows of 44 tokens" in shown and "(its tokenizer)" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bgpo", "--rollout-engine", "openai"), "'openai' cannot replace its weights"),
        (("bgpo", "--rollout-engine", "sglang"), "needs the address of its server: --rollout-engine-url"),
        (
            ("cj_grpo", "--rollout-engine", "sglang", "--rollout-engine-url", "http://127.0.0.1:9"),
            "cj_grpo reads more of a rollout than the tokens of its completions, ",
        ),
        (
            (
                "bgpo",
                "--rollout-engine",
                "sglang",
                "--rollout-engine-url",
                "http://127.0.0.1:9",
                "--rollout",
                "steps=4",
            ),
            "the rollout of bgpo: engine sglang cannot honor steps=4",
        ),
        (("mdpo", "--prompt-filter", "over_denoising"), "give --max-steps"),
    ],
)
def test_what_a_training_refuses_without_a_sampler(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    method, *settings = words
    base = "tiny-llada-sort-base" if method == "mdpo" else "tiny-sdar-sort-base"
    assert message in refused(capsys, method, "--model", base, "--task", "dare_sort", "--dry-run", *settings)


def test_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--gpu belongs to --dry-run" in refused(capsys, *COUPLED, "--gpu", "H100")
    assert "unknown GPU 'B200'" in refused(capsys, *COUPLED, "--dry-run", "--processes", "2", "--gpu", "B200")
    assert "--json: an estimate (--dry-run) is text" in refused(capsys, *COUPLED, "--dry-run", "--json")
    assert "and this is one; give --processes N" in refused(capsys, *COUPLED, "--dry-run")
    odd = (*COUPLED, "--dry-run", "--processes", "3", "--per-device-train-batch-size", "4")
    assert "are not a multiple of --num-generations 10; give --per-device-train-batch-size" in refused(capsys, *odd)
    unknown = ("sft", "--model", "tiny-lada", "--task", "dare_sudoku", "--dry-run")
    assert "no checkpoint 'tiny-lada'" in refused(capsys, *unknown)
    typo = ("sft", "--model", "GSAI-ML/LLaDA-8B-Instruc", "--task", "dare_sudoku", "--dry-run")
    assert "closest: GSAI-ML/LLaDA-8B-Instruct" in refused(capsys, *typo, code=1)


def test_rewards_and_paths_that_the_training_would_refuse_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    local = ("d1", "--model", "tiny-llada-base", "--task", "dare_sort", "--num-generations", "4", "--dry-run")
    assert "'format_weigt' is not a field of the reward 'dare_sort'" in refused(
        capsys, *local, "--reward", "format_weigt=1"
    )
    assert "scheme='dare'" in refused(capsys, *COUPLED, "--dry-run", "--processes", "2", "--reward", "scheme=dare")
    assert "no row has; rows have dare_sort" in refused(capsys, *local, "--reward", "gsm8k={}")
    assert "no checkpoint './ref'" in refused(capsys, *local, "--beta", "0.1", "--reference", "./ref")
    for path in ("missing.jsonl", "rows/train.jsonl", "rows/*.jsonl"):
        assert path in refused(capsys, "sft", "--model", "tiny-llada-base", "--data", path, "--dry-run")
