"""Every verb that reads runs, on every kind of hostile external result: one line and an exit code, or a harmless
answer."""

from __future__ import annotations

import shutil
from pathlib import Path

from calls import HARMFUL, call
from hostile_external import KINDS, RESULTS, genuine

READS = {
    "run": {"show", "compare", "export table", "export hub", "leaderboard"},
    "samples": {"show", "compare"},
    "none": set[str](),
}
"""Who must not leave with 0, by how far a kind reaches."""
TASKS = {"lm-eval": "words_gen", "opencompass": "ARC-c"}


def verbs(root: Path, layout: str) -> dict[str, list[str]]:
    """The words of each verb for the result of a layout below ``root``; ``root.parent`` has a genuine one."""
    place = root / RESULTS[layout](root.parent / "sound").relative_to(root.parent / "sound")
    place = place.parent if layout == "opencompass" else place
    sound, out = root.parent / "sound" / place.relative_to(root), root.parent / "written"
    task, folder = TASKS[layout], root / layout
    return {
        "show": ["show", str(folder), "--task", task],
        "show --json": ["show", str(folder), "--task", task, "--json"],
        "compare": ["compare", str(sound), str(place), "--task", task, "--html", str(out / "c.html")],
        "report": ["report", str(folder), str(sound), "--markdown", str(out / "report.md")],
        "report --agreement": ["report", "--agreement", str(sound), str(place), "--task", task],
        "ls": ["ls", "runs", str(folder)],
        "ls --json": ["ls", "runs", str(folder), "--json"],
        "export table": ["export", "table", str(place), "--tasks", task],
        "export hub": ["export", "hub", str(place), "--dataset", f"{task}=a/b:c", "--allow-partial", "-o", str(out)],
        "leaderboard": ["leaderboard", "build", str(folder), "-o", str(out / "site")],
        "regress": ["regress", str(place), "--baseline", str(out / "b.json"), "--update"],
        "score": ["score", str(place)],
    }


def hostile(tmp_path: Path, kind: str) -> Path:
    """A fresh folder with the results of that kind."""
    for name in ("result", "written"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    genuine(tmp_path / "result")
    KINDS[kind].change(tmp_path / "result")
    return tmp_path / "result"


def test_every_verb_reads_the_genuine_results(tmp_path: Path) -> None:
    for name in ("sound", "result"):
        genuine(tmp_path / name)
    for layout in TASKS:
        codes = {verb: call(words)[0] for verb, words in verbs(tmp_path / "result", layout).items()}
        assert {verb: code for verb, code in codes.items() if code != 0} == {"regress": 1, "score": 1}


def test_no_verb_trips_over_any_hostile_external_result(tmp_path: Path) -> None:
    """Each kind meets ``show``, which reads results and samples, and two of the other verbs, in turn."""
    genuine(tmp_path / "sound")
    problems = []
    for at, (name, kind) in enumerate(KINDS.items()):
        (shown, *others) = verbs(hostile(tmp_path, name), kind.layout).items()
        for verb, words in (shown, *others[at % 6 :: 6]):
            code, out, err = call(words)
            if not isinstance(code, int):
                problems.append(f"{name} | {verb} | {code}")
            elif "this is a bug" in err or "Traceback" in err:
                problems.append(f"{name} | {verb} | crashes: {err[-300:]}")
            elif HARMFUL.search(out + err):
                problems.append(f"{name} | {verb} | prints what a terminal obeys")
            elif code == 0 and verb.split(" --")[0] in READS[kind.reach]:
                problems.append(f"{name} | {verb} | leaves with 0")
        for file in (tmp_path / "written").rglob("*.md"):
            if HARMFUL.search(file.read_text()):
                problems.append(f"{name} | {file.name} has what a terminal obeys")
    assert not problems, f"{len(problems)} problems in {len(KINDS)} kinds:\n" + "\n".join(problems)
