"""``dare-bench export``: adapters, evaluated without merging and merged; tables; uploads to the hub."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from huggingface_hub.errors import RepositoryNotFoundError
from run_factory import make_run
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


Out = pytest.CaptureFixture[str]


def dare(capsys: Out, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["export", *words])
    output = capsys.readouterr()
    return int(left.value.code or 0), output.out, output.err


@pytest.fixture(name="run")
def made_run(tmp_path: Path) -> Path:
    """A run of a task with a data set on the hub and of one without."""
    run = make_run(tmp_path, "my-run", model="me/ckpt", tasks={"gsm8k": 0.75, "dare_sudoku": 0.9})
    (file,) = run.glob("results_*.json")
    whole = json.loads(file.read_text())
    whole["configs"]["gsm8k"] = {"dataset_path": "openai/gsm8k", "dataset_name": "main"}
    file.write_text(json.dumps(whole))
    return run


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt at the network is an error, and noted."""
    tried: list[Any] = []

    def refuse(*words: Any, **_: Any) -> Any:
        tried.append(words)
        raise OSError("no network here")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", refuse)
    return tried


@pytest.fixture(name="commits")
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A hub that takes every commit and keeps it."""
    commits: list[dict[str, Any]] = []

    def commit(_: Any, **named: Any) -> Any:
        commits.append(named)
        pr = "https://hub/pr/1" if named["create_pr"] else None
        return SimpleNamespace(pr_url=pr, commit_url="https://hub/commit/1")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", commit)
    return commits


def test_table_to_the_terminal_and_to_a_file(run: Path, tmp_path: Path, capsys: Out) -> None:
    code, out, _ = dare(capsys, "table", str(run), "--tasks", "dare_sudoku, gsm8k", "--caption", "Ours")
    assert code == 0 and out.startswith("Ours\n\n| checkpoint | dare\\_sudoku (n=20) | gsm8k (n=20) |\n")
    file = tmp_path / "new" / "table.tex"
    code, out, _ = dare(capsys, "table", str(run), "--format", "latex", "--interval", "range", "-o", str(file))
    assert (code, out) == (0, f"{file}\n") and r"\toprule" in file.read_text() and "$_{-" in file.read_text()
    code, out, _ = dare(capsys, "table", str(run), str(run), "--format", "csv")  # named twice: read once
    assert code == 0 and len(out.splitlines()) == 2


def test_table_says_what_it_leaves_out_and_what_is_wrong(run: Path, tmp_path: Path, capsys: Out) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "run.json").write_text(json.dumps({"run_id": "begun", "spec": {"model": "x"}}))
    code, out, err = dare(capsys, "table", str(run), str(begun))
    assert code == 0 and "me/ckpt" in out and f"left out: {begun} has no score (status running)" in err
    assert dare(capsys, "table", str(begun))[0] == 1
    code, out, err = dare(capsys, "table", str(run), "--tasks", "gsm")
    assert code == 2 and "unknown task 'gsm'; closest: gsm8k" in err and not out
    assert dare(capsys, "table", str(run), "--tasks", ",")[0] == 2
    assert dare(capsys, "table", str(run), "--format", "html")[0] == 2


def test_hub_writes_and_sends_nothing(run: Path, tmp_path: Path, capsys: Out, no_network: list[Any]) -> None:
    folder = tmp_path / "hub"
    code, out, err = dare(capsys, "hub", str(run), "-o", str(folder), "--repo-id", "me/ckpt")
    assert code == 0 and out.splitlines()[-1] == str(folder) and no_network == []
    assert "left out: dare_sudoku" in err and "'main'" in err and "eval.yaml" in err
    (file,) = (folder / ".eval_results").iterdir()
    score = Run(run).headline("gsm8k")
    assert score is not None and file.name == f"gsm8k-{score.fingerprint[:8]}.yaml"
    assert yaml.safe_load(file.read_text())[0]["value"] == 75.0
    assert f"would open a pull request with:\n  .eval_results/{file.name}\n" in err
    assert "README.md contains only the scores and is not pushed" in err
    assert yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])["model-index"][0]["name"] == "ckpt"


def test_push_opens_a_pull_request(run: Path, tmp_path: Path, capsys: Out, commits: list[dict[str, Any]]) -> None:
    code, _, err = dare(capsys, "hub", str(run), "-o", str(tmp_path / "hub"), "--push", "--repo-id", "me/ckpt")
    assert code == 0 and "pushed: https://hub/pr/1" in err
    (commit,) = commits
    assert commit["repo_id"] == "me/ckpt" and commit["create_pr"] is True
    ((path, text),) = {item.path_in_repo: item.path_or_fileobj.decode() for item in commit["operations"]}.items()
    assert path.startswith(".eval_results/gsm8k-") and (tmp_path / "hub" / path).read_text() == text


def test_push_without_a_pull_request(run: Path, tmp_path: Path, capsys: Out, commits: list[dict[str, Any]]) -> None:
    words = ["hub", str(run), "-o", str(tmp_path / "hub"), "--push", "--repo-id", "me/ckpt", "--no-pr"]
    code, _, err = dare(capsys, *words)
    assert code == 0 and "pushed: https://hub/commit/1" in err and commits[0]["create_pr"] is False
    assert [item.path_in_repo.split("/")[0] for item in commits[0]["operations"]] == [".eval_results"]


@pytest.mark.parametrize("offline", [True, False])
def test_a_push_that_fails_is_one_line(
    run: Path, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    if not offline:

        def unknown(*_: Any, **__: Any) -> Any:
            response: Any = SimpleNamespace(headers={}, request=None, status_code=404)
            raise RepositoryNotFoundError("404 Client Error.\n\nRepository Not Found", response=response)

        monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", unknown)
    code, out, err = dare(capsys, "hub", str(run), "-o", str(tmp_path / "hub"), "--push", "--repo-id", "me/ckpt")
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    reason = "OSError: no network here" if offline else "RepositoryNotFoundError: 404 Client Error."
    assert code == 1 and line.startswith(f"error: cannot push to me/ckpt: {reason}; check the network") and not out
    assert "Traceback" not in err and (tmp_path / "hub" / "README.md").is_file()


def test_hub_refusals(run: Path, tmp_path: Path, capsys: Out) -> None:
    folder = ["-o", str(tmp_path / "hub")]
    for words, code, why in (
        (["--push"], 2, "--push needs --repo-id"),
        (["--no-pr"], 2, "--no-pr needs --push"),
        (["--repo-id", "a/b/c"], 2, "'a/b/c' is not a repository name"),
        (["--dataset", "gsm8k"], 2, "expected TASK=ID"),
    ):
        left, out, err = dare(capsys, "hub", str(run), *folder, *words)
        assert (left, out) == (code, "") and why in err
    sudoku = make_run(tmp_path / "other", "sudoku")
    code, _, err = dare(capsys, "hub", str(sudoku), *folder)
    assert code == 2 and "nothing to export: no task has a data set on the hub" in err
    limited = make_run(tmp_path / "other", "limited", limit=20)
    words = ["hub", str(limited), *folder, "--dataset", "dare_sudoku=me/sudoku"]
    code, _, err = dare(capsys, *words)
    assert code == 1 and "limited to 20 of 200 documents" in err and not (tmp_path / "hub").exists()
    assert dare(capsys, *words, "--allow-partial")[0] == 0
    code, _, err = dare(capsys, "hub", str(tmp_path / "other"), *folder)
    assert code == 2 and "contains 2 runs; give one of them" in err
