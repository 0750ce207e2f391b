"""What nodes of the sweeps' tests do instead of training and evaluating: importable, so that worker processes find it.

``OUT/../begun`` lists the nodes that were begun, in order. ``OUT/../acts.json`` tells what a node whose id contains a
word shall do: ``fail``, ``die`` (SIGKILL), ``interrupt`` (Ctrl-C), ``weights`` (train other weights than before), or
``wait`` (for ``OUT/../go``; its process is told in ``OUT/../seed=N.pid``).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executor_jobs import until
from run_factory import make_run

from dare_bench import fingerprint
from dare_bench.errors import DataError
from dare_bench.loading import locate
from dare_bench.sweeps.job import Ended, NodeJob, work
from dare_bench.sweeps.record import RunOfNode
from dare_bench.sweeps.sweep_graph import SweepNode


def told(out: Path) -> list[str]:
    """The nodes that were begun."""
    file = out.parent / "begun"
    return file.read_text().splitlines() if file.exists() else []


def act(out: Path, **acts: str) -> None:
    """From now on nodes whose id contains the key do what the value says."""
    (out.parent / "acts.json").write_text(json.dumps(acts))


def play(job: NodeJob) -> Ended:
    return work(job, {"train": train, "eval": evaluate})


def train(out: Path, node: SweepNode, overrides: Mapping[str, Any]) -> Ended:
    _begin(out, node)
    folder = node.path(out)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(node.settings) + ("other" if _acts(out, node) == "weights" else "")
    (folder / "model.safetensors").write_text(text)
    (folder / "lineage.json").write_text("{}")
    settings = {"base_content": fingerprint.content_hash(locate(node.settings["model"]))}
    (folder / "train.json").write_text(json.dumps({"status": "complete", "settings": settings}))
    return Ended()


def evaluate(out: Path, node: SweepNode, overrides: Mapping[str, Any]) -> Ended:
    _begin(out, node)
    checkpoint = node.training or node.settings["model"]
    content = fingerprint.content_hash(out / node.training if node.training is not None else locate(checkpoint))
    run_id = f"{fingerprint.slug(checkpoint, 60)}-{fingerprint.digest([node.settings, content], 8)}"
    built = make_run(out / "runs", run_id, model=checkpoint, n_docs=2, content=content.removeprefix("sha256:"))
    return Ended((RunOfNode(id=built.name),))


def _begin(out: Path, node: SweepNode) -> None:
    handle = os.open(out.parent / "begun", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, f"{node.id}\n".encode())
    os.close(handle)
    logging.getLogger("dare_bench").info("logged by %s", node.id)
    print(f"printed by {node.id}", file=sys.stderr)
    what = _acts(out, node)
    if what == "fail":
        raise DataError(f"{node.id} was told to fail")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "wait":
        (out.parent / f"{node.id.rpartition('-')[2]}.pid").write_text(str(os.getpid()))
        until(lambda: (out.parent / "go").exists())


def _acts(out: Path, node: SweepNode) -> str | None:
    file = out.parent / "acts.json"
    acts = json.loads(file.read_text()) if file.exists() else {}
    return next((what for word, what in acts.items() if word in node.id), None)
