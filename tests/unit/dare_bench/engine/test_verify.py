"""Packs of runs: what they leave out, and what of a changed one is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_files import in_json, in_line, named, results_of, samples_of, traces_of
from require import need_package
from run_factory import make_run
from sudoku_runs import make_sudoku

from dare_bench.engine.soundness import Check
from dare_bench.engine.verify import verify
from dare_bench.errors import RunError
from dare_bench.runs.pack import write_pack
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import file_digest

need_package("lm_eval")
ALL = ["files", "public", "digests", "complete", "costs", "data", "scores"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All 250 documents, every fourth of them wrong."""
    return make_sudoku(tmp_path_factory.mktemp("runs"), lambda doc: doc % 4 < 3, limit=250)


@pytest.fixture
def pack(run: Run, tmp_path: Path) -> Path:
    return write_pack(run, tmp_path / "submissions").path


def results(path: Path, **given: Any) -> dict[str, Check]:
    return {check.name: check for check in verify(path, **given)}


def failure(path: Path, **given: Any) -> str:
    """The one check that fails, as ``name: detail``."""
    failed = [f"{check.name}: {check.detail}" for check in results(path, **given).values() if check.passed is False]
    assert len(failed) == 1, failed
    return failed[0]


def settle(pack: Path) -> None:
    """Give a changed pack the digests of its files, as a forger would."""
    change = {"samples_sha256": file_digest(samples_of(pack)), "traces_sha256": file_digest(traces_of(pack))}
    task = "dare_bench/tasks/dare_sudoku"
    in_json(results_of, {f"{task}/{name}": value for name, value in change.items()})(pack)
    in_json(named("done.json"), {"results_sha256": file_digest(results_of(pack))})(pack)


def test_a_pack_is_a_run_that_passes(run: Run, pack: Path) -> None:
    checks = results(pack)
    assert list(checks) == ALL and all(check.passed for check in checks.values()), checks
    assert checks["complete"].detail == "250 documents"
    packed = Run(pack)
    assert [score.value for score in packed.scores()] == [score.value for score in run.scores()]
    assert [score.fingerprint for score in packed.scores()] == [score.fingerprint for score in run.scores()]
    assert samples_of(pack).read_bytes() == samples_of(run.path).read_bytes()
    again = write_pack(packed, pack.parent / "again").path
    assert {file.name: file.read_bytes() for file in again.iterdir()} == {
        file.name: file.read_bytes() for file in pack.iterdir()
    }


def test_traces_can_be_left_out(run: Run, tmp_path: Path) -> None:
    pack = write_pack(run, tmp_path, traces=False).path
    assert sorted(file.name.partition("_")[0] for file in pack.iterdir()) == [
        "done.json", "results", "run.json", "samples",
    ]  # fmt: skip
    assert results(pack)["digests"].detail == "SHA-256 of 2 files"


def test_folders_addresses_and_keys_stay_here(tmp_path: Path) -> None:
    run = make_sudoku(tmp_path / "private")
    folder = str(tmp_path)
    command = (
        f"dare-bench eval --model={folder}/ckpt/llada -a token=abc --engine-url http://10.1.2.3:80 -o {folder}/a/b"
        f" --output_path={folder}/o --tasks dare_sudoku --limit 4"
    )
    block = {"command": command, "model/path": f"{folder}/ckpt/llada", "notes": [f"read {folder}/data/x"]}
    change: dict[str, Any] = {f"dare_bench/{name}": value for name, value in block.items()}
    change |= {"config/model_args": {"pretrained": f"{folder}/ckpt/llada", "mask_id": 7, "token": "abc"}}
    in_json(results_of, change)(run.path)
    private = ("output_path", "data_dir", "engine_url", "ray_address", "model")
    in_json(named("run.json"), {**{f"spec/{name}": folder for name in private}, "device": folder})(run.path)
    pack = write_pack(Run(run.path), tmp_path / "packs").path
    text = "".join(file.read_text() for file in pack.iterdir())
    for word in (folder, "abc", "10.1.2.3", "output_path", "platform", "pretty_env_info"):
        assert word not in text, word
    packed = Run(pack)
    assert packed.require_block().command == "dare-bench eval --model=llada --tasks dare_sudoku --limit 4"
    assert packed.require_block().notes == ["read x"]
    assert packed.results["config"]["model_args"] == {"pretrained": "ToyModel", "mask_id": 7}
    assert packed.requested["model"] == "ToyModel" and "data_dir" not in packed.requested


def test_a_key_is_refused_wherever_it_is(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "0123-4567-89ab")
    write_pack(run, tmp_path / "absent")
    leaking = make_sudoku(tmp_path / "runs")
    in_line(samples_of, {"doc/note": "0123-4567-89ab"})(leaking.path)
    with pytest.raises(RunError, match=r"line \d+ contains the value of MY_API_KEY; packs are public"):
        write_pack(Run(leaking.path), tmp_path / "packs")
    assert not (tmp_path / "packs" / leaking.run_id).exists()
    in_line(samples_of, {"doc/note": "hf_" + "aB3" * 12})(leaking.path)
    with pytest.raises(RunError, match="contains what looks like the key of a service") as caught:
        write_pack(Run(leaking.path), tmp_path / "packs")
    assert "hf_" not in str(caught.value)


def test_what_is_not_packed(tmp_path: Path) -> None:
    run = make_sudoku(tmp_path / "runs")
    write_pack(run, tmp_path)
    with pytest.raises(RunError, match=r"exists; remove it, or give another folder with --out"):
        write_pack(run, tmp_path)
    with pytest.raises(RunError, match="has no sample lines of dare_sudoku; evaluate without --no-log-samples"):
        samples_of(run.path).rename(tmp_path / "samples")
        write_pack(run, tmp_path / "b")
    outside = Run(make_run(tmp_path / "c"))
    in_json(results_of, {"dare_bench/run_id": "../../elsewhere"})(outside.path)
    with pytest.raises(RunError, match=r"run_id '\.\./\.\./elsewhere' cannot be a folder's name"):
        write_pack(Run(outside.path), tmp_path / "d")


def link(pack: Path) -> None:
    """The samples are a link to a file with the same content."""
    file, target = samples_of(pack), pack.parent.parent / "elsewhere.jsonl"
    shutil.move(file, target)
    file.symlink_to(target)


def more(name: str) -> Callable[[Path], Any]:
    return lambda pack: (pack / name).write_text("{}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (link, "is a link or a folder; a pack has only regular files"),
        (lambda pack: (pack / "journal").mkdir(), "'journal' is a link or a folder"),
        (lambda pack: os.mkfifo(pack / "pipe"), "'pipe' is a link or a folder"),
        (more("utils.py"), "utils.py is not a file of this run; remove it"),
        (more("results_2020-01-01T00-00-00.json"), "results_2020-01-01T00-00-00.json is not a file of this run"),
        (lambda pack: (pack / "run.json").unlink(), "run.json is missing"),
        (lambda pack: os.truncate(samples_of(pack), 200 << 20), "209,715,200 bytes; at most 99,614,720 are allowed"),
        (in_json(results_of, {"dare_bench/schema_version": 99}), "schema version 99"),
        (in_json(results_of, {"dare_bench/tasks/dare_sudoku/nfe": -1}), "the dare_bench block is damaged"),
    ],
)  # fmt: skip
def test_files_that_are_refused(pack: Path, change: Callable[[Path], None], reason: str) -> None:
    change(pack)
    checks = results(pack)
    assert list(checks) == ["files"] and checks["files"].passed is False
    assert reason in checks["files"].detail and "\n" not in checks["files"].detail


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (in_json(named("run.json"), {"spec/data_dir": "data"}), "public: run.json: spec.data_dir is not part of"),
        (in_json(named("run.json"), {"spec/engine_url": "http://x"}), "public: run.json: spec.engine_url is not part"),
        (in_json(results_of, {"dare_bench/model/path": "/home/a/b"}), "json: dare_bench.model.path is not part of"),
        (in_json(named("run.json"), {"spec/seeds": [1, 2, 3, 4]}), "public: run.json: spec.seeds is not part"),
        (in_json(results_of, {"dare_bench/environment/host": "mine"}), "json: dare_bench.environment.host is not part"),
    ],
)  # fmt: skip
def test_what_is_not_public(pack: Path, change: Callable[[Path], None], reason: str) -> None:
    change(pack)
    settle(pack)
    assert reason in failure(pack)


FORGED = {
    "an answer": (in_line(samples_of, {"resps": [["1111\n" * 4]]}), "exact_match,none: 0.752 in the pack, 0.748 here"),
    "a document's value": (in_line(samples_of, {"exact_match": 0.25}), "scores: 1 value changed; the first is"),
    "a score": (in_json(results_of, {"results/dare_sudoku/exact_match,none": 0.99}), "0.99 in the pack, 0.752 here"),
    "an interval": (
        in_json(results_of, {"dare_bench/ci/dare_sudoku/exact_match,none/lo": 0.74}),
        "scores: dare_sudoku: the intervals do not follow from its documents",
    ),
    "passes": (in_json(results_of, {"dare_bench/tasks/dare_sudoku/nfe": 10}), "costs: dare_sudoku: requests, forward"),
    "tokens": (in_json(results_of, {"dare_bench/cost/tokens_to_eos": 10}), "costs: requests, forward passes, tokens"),
    "a definition": (
        in_json(results_of, {"dare_bench/tasks/dare_sudoku/fingerprint": "a:b"}),
        "data: dare_sudoku: documents, prompts or scorer have the fingerprint a:b, here",
    ),
    "data": (
        in_json(results_of, {"dare_bench/tasks/dare_sudoku/data": "my.jsonl"}),
        "data: dare_sudoku: its documents came from my.jsonl, here they come from the task",
    ),
    "the size of the task": (
        in_json(results_of, {"dare_bench/tasks/dare_sudoku/n_total": 249}),
        "complete: done.json is not that of these results",
    ),
    "the size of the task in both": (
        lambda pack: (in_json(results_of, {"dare_bench/tasks/dare_sudoku/n_total": 300})(pack),
                      in_json(named("done.json"), {"totals/dare_sudoku": 300})(pack)),
        "complete: dare_sudoku: 250 of 300 documents",
    ),
    "a prompt": (in_line(samples_of, {"arguments/gen_args_0/arg_0": "easy"}), "has a different prompt now"),
    "the number of documents": (
        in_json(results_of, {"dare_bench/tasks/dare_sudoku/n_docs": 249}),
        "complete: dare_sudoku: 250 documents in the samples and failures, 249 in the results",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_what_is_forged_with_new_digests(pack: Path, name: str) -> None:
    change, reason = FORGED[name]
    change(pack)
    digests = results(pack)["digests"]
    assert digests.passed is False and "edited after the run" in digests.detail
    settle(pack)
    assert reason in failure(pack)
