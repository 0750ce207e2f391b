"""The hub where there is no network: one attempt, no waiting, and a message that names the network first."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import OfflineModeIsEnabled
from toy_model import ToyModel

from dare_bench import hub
from dare_bench.config import run_spec
from dare_bench.errors import CheckpointError, DareError, DataError
from dare_bench.harness.lm_eval.source import LmEvalSource
from dare_bench.loading import locate
from dare_bench.training.sources import open_hub

NOT_REACHED = r"huggingface\.co cannot be reached \(Name or service not known\), and"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The hosts whose address was asked for: none is known here, nothing is cached, and nobody may wait."""
    hosts: list[str] = []

    def unknown(host: str, *_: Any, **__: Any) -> Any:
        hosts.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def wait(seconds: float) -> None:
        raise AssertionError(f"waited for {seconds} s")

    for name in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{name}.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(f"{name}.HF_HUB_CACHE" if "hub" in name else f"{name}.HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr("time.sleep", wait)
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    return hosts


@pytest.mark.parametrize(
    ("load", "kind", "message"),
    [
        (
            lambda: LmEvalSource(run_spec(model="toy", tasks="gsm8k"), ToyModel()).requests(),
            DataError,
            rf"task 'gsm8k' could not be built: {NOT_REACHED} openai/gsm8k is not in the cache .*; --data-dir or DARE",
        ),
        (
            lambda: LmEvalSource(run_spec(model="toy", tasks="gpqa_main_zeroshot"), ToyModel()).requests(),
            DataError,
            rf"{NOT_REACHED} Idavidrein/gpqa .*--data-dir .* gated: accept its terms at .* HF_TOKEN\) and run again$",
        ),
        (
            lambda: open_hub("openai/gsm8k:main", "train"),
            DataError,
            rf"{NOT_REACHED} it is .*; give a local file",
        ),
        (
            lambda: locate("owner/model"),
            CheckpointError,
            rf"{NOT_REACHED} it is neither a folder nor .*; give a",
        ),
    ],
)
def test_without_network_the_hub_is_asked_once(
    asked: list[str],
    load: Callable[[], object],
    kind: type[DareError],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(kind, match=message) as error:
        load()
    assert asked == ["huggingface.co"]
    assert re.fullmatch(r"[^\n]*", str(error.value)) and capfd.readouterr().err == ""


def test_what_is_cached_opens_without_network(asked: list[str], tmp_path: Path) -> None:
    cached = tmp_path / "models--owner--model"
    for file, text in {"refs/main": "abc", "snapshots/abc/config.json": "{}"}.items():
        (cached / file).parent.mkdir(parents=True)
        (cached / file).write_text(text)
    assert locate("owner/model") == cached / "snapshots" / "abc"
    assert asked == ["huggingface.co"]


class ConnectError(Exception):
    """Named as httpx's."""


def test_what_was_reached_once_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Exception | str] = ["answer", ConnectError("lost"), ConnectError("refused")]

    def send(_: Any) -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    client = SimpleNamespace(send=send)
    request = SimpleNamespace(url=SimpleNamespace(host="hub.example"))
    monkeypatch.setattr("huggingface_hub.get_session", lambda: client)
    with hub.asked_once():
        assert client.send(request) == "answer"
        with pytest.raises(ConnectError, match="lost"):
            client.send(request)
    with hub.asked_once():
        for _ in range(2):
            with pytest.raises(OfflineModeIsEnabled, match=r"hub\.example cannot be reached \(refused\)"):
                client.send(request)
    assert client.send is send and not outcomes
