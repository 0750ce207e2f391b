"""Small manifest folders, and OpenCompass without a network: for tests of where its data lies."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dare_bench.harness.opencompass.catalog import ConfigCatalog, quiet
from dare_bench.harness.opencompass.layout import ROOT, Layout

BENCH = Path(__file__).parent / "data" / "bench"


def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Caches and a current folder of this test's own, and no way out: asking for an address is noted."""
    requested: list[Any] = []

    def refuse(host: Any, *_: Any, **__: Any) -> Any:
        requested.append(host)
        raise OSError(f"the test has no network, not even for {host!r}")

    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("DARE_BENCH_DATA", ROOT, "DATASET_SOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert requested == []


def built(catalog: ConfigCatalog, layout: Layout, name: str) -> list[Any]:
    (wanted,) = catalog.match([name])
    with quiet():
        return [layout.build(config) for config in catalog.load(wanted)]


def bench(folder: Path, name: str, hub_id: str, configs: list[str] | None = None, **splits: list[Any]) -> Path:
    """A manifest folder with one data set, whose splits are given as rows (of each config)."""
    place = name + ("/{config}" if configs else "")
    files = []
    for split, rows in splits.items():
        for config in configs or [""]:
            path = folder / place.replace("{config}", config) / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            files.append({"file": str(path.relative_to(folder))})
    first = {"test": f"{place}/test.jsonl"} if "test" in splits else {s: f"{place}/{s}.jsonl" for s in splits}
    entry = {
        "name": name,
        "hf_ids": [hub_id],
        "configs": configs or [],
        "lm_eval": {"dataset_path": "json", "dataset_kwargs": {"data_files": first}},
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps({"datasets": [entry]}))
    return folder


def row_of(folder: str, number: int = 0) -> dict[str, Any]:
    return dict(json.loads((BENCH / folder).read_text().splitlines()[number]))
