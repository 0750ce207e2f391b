"""Every verb that reads runs, on every kind of hostile run folder: one line and an exit code, or a harmless answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from calls import HARMFUL, call
from hostile_files import TASK
from hostile_runs import KINDS
from require import need_package

import dare_bench

need_package("lm_eval")
DATASET = f"{TASK}=openai/gsm8k:main"


def verbs(place: Path, run: Path) -> dict[str, list[str]]:
    """The words of each verb. ``place`` has the genuine run and its baseline, and what is written goes there."""
    sound, out = str(place / "sound" / run.name), place / "written"
    baseline = str(place / "baseline.json")
    return {
        "show": ["show", str(run)],
        "show --json": ["show", str(run), "--json"],
        "compare": ["compare", sound, str(run), "--markdown", str(out / "compare.md"), "--html", str(out / "c.html")],
        "compare --json": ["compare", str(run), sound, "--force", "--json"],
        "report": ["report", str(run), sound, "--markdown", str(out / "report.md")],
        "report --agreement": ["report", "--agreement", str(run), sound, "--json"],
        "ls": ["ls", "runs", str(run.parent)],
        "ls --json": ["ls", "runs", str(run.parent), "--json"],
        "regress": ["regress", str(run), "--baseline", baseline, "--junit", str(out / "j.xml")],
        "regress --update": ["regress", str(run), "--baseline", str(out / "baseline.json"), "--update"],
        "score": ["score", str(run)],
        "leaderboard submit": ["leaderboard", "submit", str(run), "-o", str(out / "packs")],
        "export table": ["export", "table", str(run)],
        "export hub": ["export", "hub", str(run), "--allow-partial", "--dataset", DATASET, "-o", str(out / "hub")],
        "leaderboard": ["leaderboard", "build", str(run.parent), "-o", str(out / "site")],
        "eval": ["eval", "--model", "tiny-llada", "--tasks", TASK, "--limit", "4", "--output-path", str(run.parent)],
    }  # fmt: skip


READS: dict[str, set[str]] = {
    "run": {"show", "compare", "report", "regress", "score", "export table", "export hub", "leaderboard"},
    "samples": {"show", "compare", "regress", "score"},
    "traces": {"show", "regress"},
    "folder": {"eval"},
    "none": set(),
}
"""Who must not leave with 0, by how far a kind reaches."""


def written(place: Path) -> str:
    """What the verbs have written for people to read beside the site, which has tests of its own."""
    files = (file for end in ("md", "yaml", "xml") for file in (place / "written").rglob(f"*.{end}"))
    return "".join(file.read_text() for file in files)


def wrong(name: str, verb: str, code: int | str, out: str, err: str) -> str | None:
    """What a verb did that it must not do; None if nothing."""
    if not isinstance(code, int):
        return code
    if "this is a bug" in err or "Traceback" in err:
        return f"crashes: {err[-300:]}"
    if result := HARMFUL.search(out + err):
        at = (out + err).index(result[0])
        return f"prints {result[0]!r}: {(out + err)[max(0, at - 60) : at + 20]!r}"
    if code == 0 and {verb, verb.split(" --")[0]} & READS[KINDS[name].reach]:
        return "leaves with 0"
    return None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a genuine run and its baseline."""
    root = tmp_path_factory.mktemp("hostile")
    run = dare_bench.evaluate(model="tiny-llada", tasks=TASK, limit=4, output_path=str(root / "sound"), progress=False)
    assert call(["regress", str(run.path), "--baseline", str(root / "baseline.json"), "--update"])[0] == 0
    return root


def hostile_run(place: Path, kind: str | None) -> Path:
    """A fresh hostile run of that kind (None: the genuine one, to see that all is well with it)."""
    for part in ("runs", "written"):
        shutil.rmtree(place / part, ignore_errors=True)
        (place / part).mkdir()
    (sound,) = (place / "sound").iterdir()
    run = Path(shutil.copytree(sound, place / "runs" / sound.name))
    if kind is not None:
        KINDS[kind].change(run)
    return run


def test_every_verb_reads_the_genuine_run(place: Path) -> None:
    run = hostile_run(place, None)
    assert {verb: code for verb, words in verbs(place, run).items() if (code := call(words)[0]) != 0} == {}


def test_no_verb_trips_over_any_hostile_run(place: Path) -> None:
    """Each kind meets ``show``, which reads every file of a run, and a sixth of the other verbs, in turn. Kinds that
    change one file or one place of the results follow one another in ``KINDS``, so every verb meets every file and
    place, and every way to damage a file. ``eval``, the slowest by far, meets a twelfth of the kinds, and all in its
    turn that it alone can trip over."""
    problems = []
    for at, name in enumerate(KINDS):
        run = hostile_run(place, name)
        (shown, *others) = verbs(place, run).items()
        for verb, words in (shown, *others[at % 6 :: 6]):
            if verb == "eval" and at % 12 != 1 and KINDS[name].reach != "folder":
                continue
            problem = wrong(name, verb, *call(words))
            if problem is not None:
                problems.append(f"{name} | {verb} | {problem}")
        if harm := HARMFUL.search(written(place)):
            problems.append(f"{name} | a file has {harm[0]!r}")
    assert not problems, f"{len(problems)} problems in {len(KINDS)} kinds of runs:\n" + "\n".join(problems)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def test_no_kind_is_accepted_as_a_pack(place: Path) -> None:
    """Each kind of change to a genuine pack fails a check; journal and lock are in no pack."""
    problems = []
    run = hostile_run(place, None)
    assert call(["leaderboard", "submit", str(run), "-o", str(place / "written" / "sound")])[0] == 0
    shutil.copytree(run / "journal", place / "written" / "sound" / run.name / "journal")
    for name, kind in KINDS.items():
        shutil.rmtree(place / "written" / "packs", ignore_errors=True)
        pack = Path(shutil.copytree(place / "written" / "sound" / run.name, place / "written" / "packs" / run.name))
        (pack / ".lock").touch()
        kind.change(pack)
        remove(pack / "journal")
        remove(pack / ".lock")
        code, out, err = call(["leaderboard", "verify", str(pack), "--allow-partial"])
        if (problem := wrong(name, "verify", code, out, err)) is not None:
            problems.append(f"{name} | {problem}")
        elif code == 0 and not any(part in name for part in ("journal", "lock")):
            problems.append(f"{name} | is accepted: {out}")
    assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems)
