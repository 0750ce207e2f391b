"""A site of runs of every kind: complete, limited, failed, unfinished, of another version, with a task missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_factory import make_run
from site_pages import TASKS

from dare_bench.leaderboards.builder import build


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    make_run(root, "best", tasks=TASKS, n_docs=60)
    fewer = {**TASKS, "dare_sudoku": 0.9}
    make_run(root, "few-steps", tasks=fewer, n_docs=60, decoding={"steps": 8}, created="2026-11-21T00:00:00")
    low = {task: share / 4 for task, share in TASKS.items()}
    make_run(root, "base", model="tiny-llada-base", tasks=low, n_docs=60, created="2026-11-18T00:00:00")
    make_run(root, "limited", tasks=TASKS, n_docs=50, limit=50, gpu="NVIDIA H200", created="2026-11-17T00:00:00")
    make_run(root, "failed", tasks=TASKS, n_docs=60, failures=2, status="incomplete", created="2026-11-16T00:00:00")
    make_run(root, "unfinished", tasks=TASKS, n_docs=10, done=False, created="2026-11-15T00:00:00")
    make_run(root, "old-prompts", tasks=TASKS, n_docs=60, fingerprint="v0", created="2026-11-14T00:00:00")
    make_run(root, "one-task", tasks={"dare_sudoku": 0.5}, n_docs=60, created="2026-11-13T00:00:00")
    out = tmp_path_factory.mktemp("site")
    report = build(root, out)
    assert report.runs == 8 and report.files == len([p for p in out.rglob("*") if p.is_file() and p.name != ".lock"])
    return out
