"""A public board by pull request: on a bare repository, with the commands of the workflow in the documentation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hostile_files import in_json, in_line, named, results_of, samples_of, traces_of
from paths import ROOT
from require import need_package
from sudoku_runs import make_sudoku

from dare_bench.cli import main
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.verify import verify
from dare_bench.runs.pack import write_pack
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import file_digest

need_package("lm_eval")
Out = pytest.CaptureFixture[str]


def jobs() -> dict[str, Any]:
    """The jobs of the workflow that the documentation prints."""
    text = (ROOT / "docs" / "leaderboard.md").read_text()
    block = text.partition("```yaml\n# .github/workflows/board.yml\n")[2].partition("```")[0]
    return dict(yaml.safe_load(block)["jobs"])


class Board:
    """A bare repository, and a program ``dare-bench`` for whoever works with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.origin = folder / "board.git"
        programs = folder / "bin"
        programs.mkdir()
        program = programs / "dare-bench"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m dare_bench.cli "$@"\n')
        program.chmod(0o755)
        who = {f"GIT_{role}_{what}": "somebody@board" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        where = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
        self.env = {**os.environ, **who, **where}
        self.git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(self.origin))
        clone = self.clone("maintainer")
        (clone / ".gitattributes").write_text("submissions/** -text\n")
        self.push(clone, "main")

    def git(self, folder: Path, *words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=folder, env=self.env, check=True, capture_output=True, text=True
        ).stdout

    def clone(self, name: str) -> Path:
        place = self.folder / name / "board"
        self.git(self.folder, "clone", "--quiet", str(self.origin), str(place))
        return place

    def push(self, clone: Path, branch: str) -> None:
        self.git(clone, "add", "--all")
        self.git(clone, "commit", "--quiet", "--message", branch)
        self.git(clone, "push", "--quiet", "origin", f"HEAD:{branch}")

    def job(self, name: str, branch: str) -> tuple[int, str]:
        """Run a job of the workflow as a runner does, with the branch merged; its exit code and output."""
        clone = self.clone(f"{name}-{branch}")
        self.git(clone, "merge", "--quiet", "--no-ff", "--no-edit", f"origin/{branch}")
        for step in jobs()[name]["steps"]:
            if "run" in step and "pip install" not in step["run"]:
                env = {**self.env, **dict.fromkeys(step.get("env", ()), "main")}
                shell = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
                done = subprocess.run(shell, cwd=clone.parent, env=env, capture_output=True, text=True, check=False)
                if done.returncode:
                    break
        return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_run_comes_to_the_board_by_a_pull_request(tmp_path: Path) -> None:
    board = Board(tmp_path)
    run = make_sudoku(tmp_path / "out", lambda doc: doc % 5 > 0, limit=250)
    fork = board.clone("fork")
    words = ["dare-bench", "leaderboard", "submit", str(run.path)]
    made = subprocess.run(words, cwd=fork, env=board.env, check=True, capture_output=True, text=True)
    assert made.stdout == f"submissions/{run.run_id}\n"
    board.push(fork, "my-run")
    code, text = board.job("verify", "my-run")
    assert code == 0, text
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("pass")] == [
        f"pass  {name}" for name in ("files", "public", "digests", "complete", "costs", "data", "scores")
    ]
    assert (tmp_path / "verify-my-run" / "site" / "index.html").is_file()

    board.git(fork, "push", "--quiet", "origin", "HEAD:main")
    code, text = board.job("publish", "main")
    site = tmp_path / "publish-main" / "site"
    record = json.loads((site / "data" / "runs" / f"{run.run_id}.json").read_text())
    assert code == 0 and record["scores"][0]["value"] == 0.8, text
    assert "ToyModel" in (site / "index.html").read_text()

    # A second pull request changes the first pack. What is wrong within packs: below, and tests of verify.
    other = board.clone("other")
    (other / "submissions" / run.run_id / "done.json").write_text("{}")
    board.push(other, "changed")
    code, text = board.job("verify", "changed")
    assert code == 1 and "a submission adds files of packs and changes no others" in text and "FAIL" not in text


def digested(pack: Path) -> None:
    """Give a changed pack the digests of its files, as a forger would."""
    task = "dare_bench/tasks/dare_sudoku"
    sums = {
        f"{task}/samples_sha256": file_digest(samples_of(pack)),
        f"{task}/traces_sha256": file_digest(traces_of(pack)),
    }
    in_json(results_of, sums)(pack)
    in_json(named("done.json"), {"results_sha256": file_digest(results_of(pack))})(pack)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_sudoku(tmp_path / "out")
    assert code_of("leaderboard", "submit", str(run.path), "-o", "packs", "--no-traces") == 0
    printed = capsys.readouterr()
    pack = Path("packs", run.run_id)
    assert printed.out == f"{pack}\n" and f"dare-bench leaderboard verify {pack}" in printed.err
    assert code_of("leaderboard", "verify", str(pack)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAIL  complete: dare_sudoku: 4 of 250 documents; finish the run, or allow parts: --allow-partial" in lines
    assert code_of("leaderboard", "verify", str(pack), "--allow-partial", "--json") == 0
    assert '"detail": "4 documents; dare_sudoku: 4 of 250 documents"' in capsys.readouterr().out
    assert code_of("leaderboard", "verify", "nothing") == 2
    assert capsys.readouterr().err.startswith("error: there is no pack nothing; give the folder that")
    Path("file").write_text("")
    assert code_of("leaderboard", "verify", "file") == 1
    assert capsys.readouterr().out.startswith("FAIL  files: file is not a folder; a pack is a folder of files")
    assert code_of("leaderboard", "submit", str(run.path), "-o", "packs") == 1
    assert capsys.readouterr().err.startswith(f"error: {pack} exists; remove it, or give another folder with --out")


def code_of(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    return int(left.value.code or 0)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("answered")
    return evaluate(model="tiny-llada", tasks="dare_sudoku", limit=4, output_path=str(out), progress=False)


def redrawn(pack: Path, model: str = "tiny-llada") -> tuple[bool | None, str]:
    *_, last = verify(pack, model=model, documents=4, allow_partial=True)
    assert last.name == "answers"
    return last.passed, last.detail


@pytest.mark.parametrize("traces", [True, False], ids=["tokens", "text"])
def test_documents_are_answered_again(answered: Run, tmp_path: Path, traces: bool) -> None:
    pack = write_pack(answered, tmp_path, traces=traces).path
    basis = "token ids" if traces else "text"
    passed, detail = redrawn(pack)
    assert passed and detail.startswith(f"4 documents drawn again (4 by {basis}): dare_sudoku 0, dare_sudoku 1"), detail
    passed, detail = redrawn(pack, "tiny-llada-base")
    assert passed is False and "tiny-llada-base is another checkpoint: its content is sha256:" in detail


def test_tokens_and_settings_that_the_checkpoint_does_not_give(answered: Run, tmp_path: Path) -> None:
    pack = write_pack(answered, tmp_path / "a").path
    in_line(traces_of, {"events/0/3": 5})(pack)
    digested(pack)
    passed, detail = redrawn(pack)
    assert passed is False and detail.startswith("1 of 4 documents have other answers here: dare_sudoku 0; answered on")
    pack = write_pack(answered, tmp_path / "b").path
    in_json(results_of, {"dare_bench/tasks/dare_sudoku/decoding/steps": 10})(pack)
    digested(pack)
    passed, detail = redrawn(pack)
    assert passed is False and "dare_sudoku: steps is 10 in the pack, and 20 with the requested settings" in detail
