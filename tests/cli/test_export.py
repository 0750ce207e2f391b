"""LoRA at the command line: an adapter is evaluated without merging, and ``export merge`` writes a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dare_bench.cli import main
from dare_bench.loading import load
from dare_bench.merging import merge
from dare_bench.protocols import AdapterSettings
from dare_bench.runs.reader import Run

pytest.importorskip("peft")

IDS = list(range(5, 25))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes what tiny-llada-base answers."""
    model = load("tiny-llada-base")
    model.loaded.add_adapter(AdapterSettings(r=4, alpha=8))
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.network.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=stream) * 0.2)
    folder = tmp_path_factory.mktemp("trained") / "lora-x"
    model.save(folder)
    return folder


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    return int(left.value.code or 0)


def evaluated(capsys: pytest.CaptureFixture[str], out: Path, *model: str) -> Run:
    words = ["--tasks", "dare_sudoku", "--limit", "4", "--output-path", str(out)]
    assert run("eval", *model, *words) == 0
    return Run(Path(capsys.readouterr().out.strip().splitlines()[-1]).parent)


def test_eval_of_an_adapter(adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = evaluated(capsys, tmp_path, "--model", "tiny-llada-base")
    ours = evaluated(capsys, tmp_path, "--model", "tiny-llada-base", "--adapter", str(adapter))
    assert ours.run_id.startswith("tiny-llada-base+lora-x-dare_sudoku-") and ours.run_id != plain.run_id
    assert ours.block is not None and plain.block is not None
    assert ours.block.model.name == "tiny-llada-base+lora-x" and ours.block.model.adapter == str(adapter)
    assert (ours.block.model.adapter_hash or "").startswith("sha256:")
    assert ours.block.model.content_hash == plain.block.model.content_hash
    assert (plain.block.model.adapter, plain.block.model.adapter_hash) == (None, None)
    about = json.loads((ours.path / "run.json").read_text())
    assert about["spec"]["adapter"] == str(adapter) and about["model"]["adapter_hash"] == ours.block.model.adapter_hash
    answers = [[line["resps"] for line in each.samples("dare_sudoku")] for each in (plain, ours)]
    assert answers[0] != answers[1], "the adapter answers"
    again = evaluated(capsys, tmp_path, "--model", str(adapter))
    assert again.path == ours.path and again.date == ours.date, "named by its folder it is the same run"
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


def test_merged_is_unmerged(adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "merged"
    words = ["--model", "tiny-llada-base", "--adapter", str(adapter), "--output-path", str(out), "--dtype", "float32"]
    assert run("export", "merge", *words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    merged, unmerged, base = load(out), load(adapter), load("tiny-llada-base")
    want = unmerged.logits(IDS)
    assert (merged.logits(IDS) - want).abs().max() <= 1e-5 * want.abs().max()
    prompts = [IDS[:4], IDS[2:9]]
    tokens = [[a.tokens for a in m.generate(prompts, gen_length=8)] for m in (merged, unmerged, base)]
    assert tokens[0] == tokens[1] != tokens[2]
    reference, ours = load_file(base.path / "model.safetensors"), load_file(out / "model.safetensors")
    assert ours.keys() == reference.keys() and {w.dtype for w in ours.values()} == {torch.float32}
    assert (out / "tokenizer.json").is_file() and json.loads((out / "config.json").read_text())["dtype"] == "float32"
    assert run("export", "merge", *words) == 2
    assert "config.json); choose another output folder" in capsys.readouterr().err


def test_a_merge_in_a_half_precision_says_that_it_rounds(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "merge", "--adapter", str(adapter), "--dtype"]
    assert run(*words, "bfloat16", "-o", str(tmp_path / "half")) == 0
    assert "the merged weights were rounded to bfloat16; give dtype float32" in capsys.readouterr().err
    assert run(*words, "float32", "-o", str(tmp_path / "full")) == 0
    assert "rounded" not in capsys.readouterr().err


def test_merge_takes_base_and_dtype_from_the_adapter(adapter: Path, tmp_path: Path) -> None:
    (adapter / "lineage.json").write_text('{"method": "sft"}')
    try:
        out = merge(None, adapter, tmp_path / "merged")
    finally:
        (adapter / "lineage.json").unlink()
    assert {w.dtype for w in load_file(out / "model.safetensors").values()} == {torch.bfloat16}
    assert (out / "lineage.json").read_text() == '{"method": "sft"}'


def test_merge_refuses_in_one_line(adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, output in (
        (["--model", "tiny-dream-base", "--adapter", str(adapter)], "does not fit the model"),
        (["--adapter", "tiny-llada"], "not an adapter folder"),
        (["--adapter", str(tmp_path / "gone")], "no checkpoint"),
    ):
        assert run("export", "merge", *words, "-o", str(tmp_path / "out")) in (1, 2)
        error = capsys.readouterr().err.strip()
        assert output in error and len(error.splitlines()) == 1
        assert not (tmp_path / "out").exists()
