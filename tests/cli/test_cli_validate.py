"""``dare-bench validate``: a sound checkpoint passes, and each thing that can be wrong is found."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import pytest

from dare_bench.cli import main
from dare_bench.engine import soundness, validation
from dare_bench.loading import load
from dare_bench.model import Model

NAMES = ["open", "mask id", "tokenizer", "keys and round trip", "batch invariance", "bfloat16 flips"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "checkpoint"
    target.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(golden.FOLDER / name, target / name)
    return target


class Stub:
    """A tokenizer that does one thing wrong."""

    def __init__(self, mask: int | None = None, shout: bool = False, breaks: bool = False) -> None:
        self.mask_token_id, self.shout, self.breaks = mask, shout, breaks

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        if self.breaks:
            raise OverflowError("no such piece")
        return {"input_ids": [ord(c) % 100 for c in text]}

    def encode(self, text: str, **_: Any) -> list[int]:
        return self(text)["input_ids"]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "other text"


def opened(folder: Path, tokenizer: Any = None, **ids: Any) -> Model:
    model = load(folder, device="cpu", dtype="float32", **ids)
    model.loaded.tokenizer = tokenizer
    return model


def test_a_sound_checkpoint_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["validate", str(folder)])
    out = capsys.readouterr().out
    assert not left.value.code
    assert [line[:4] for line in out.splitlines()] == ["pass", "pass", "skip", "pass", "pass", "pass"]
    with pytest.raises(SystemExit):
        main(["validate", str(folder), "--json"])
    checks = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in checks] == NAMES
    assert set(checks[-1]["values"]) == {"tokens", "batch_flip_rate", "float32_flip_rate"}
    assert checks[-1]["values"]["tokens"] == 12 * 16


def test_a_cut_file_does_not_open(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(SystemExit) as left:
        main(["validate", str(folder)])
    out = capsys.readouterr().out
    assert left.value.code == 1 and out.startswith("FAIL  open: ") and out.count("\n") == 1


def test_a_mask_id_that_cannot_be_is_found(folder: Path) -> None:
    spec = golden.model().spec
    model = opened(folder)
    model.loaded.spec = replace(spec, eot_id=spec.mask_id)
    passed, detail = soundness.mask_id(model)
    assert passed is False and "also an end" in detail
    passed, detail = soundness.mask_id(opened(folder, Stub(mask=3)))
    assert passed is False and "the tokenizer's mask token is 3" in detail


def test_a_tokenizer_that_changes_text_is_found(folder: Path) -> None:
    passed, detail = soundness.tokenizer(opened(folder, Stub()))
    assert passed is False and "decodes to 'other text'" in detail


def test_a_tokenizer_that_breaks_is_a_failed_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(folder, Stub(breaks=True))
    for module in ("engine.validation", "engine.opener"):
        monkeypatch.setattr(f"dare_bench.{module}.load", lambda *_, **__: model)
    result = {check.name: check for check in validation.validate(str(folder))}
    assert result["tokenizer"].passed is False and "no such piece" in result["tokenizer"].detail
    assert list(result) == NAMES, "the other checks must still be made"


@pytest.mark.parametrize(("prefix", "factor", "said"), [("new.", 1.0, "42 tensor names"), ("", 1.01, "logits differ")])
def test_a_bad_round_trip_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, factor: float, said: str
) -> None:
    from safetensors.torch import load_file, save_file

    save = Model.save

    def spoiled(self: Model, path: str | Path) -> None:
        save(self, path)
        file = Path(path) / "model.safetensors"
        changed = {prefix + name: tensor * factor for name, tensor in load_file(str(file)).items()}
        save_file(changed, str(file), metadata={"format": "pt"})

    monkeypatch.setattr(Model, "save", spoiled)
    passed, detail = validation.round_trip(opened(folder), folder, {"device": "cpu"})
    assert passed is False and said in detail


def test_rows_that_depend_on_their_neighbors_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = Model.generate

    def leaky(self: Model, prompts: Any, *, max_rows: int | None = None, **settings: Any) -> Any:
        built = generate(self, prompts, max_rows=max_rows, **settings)
        if max_rows == 3:
            built[0].tokens[7] += 1
        return built

    monkeypatch.setattr(Model, "generate", leaky)
    passed, detail = validation.batch_invariance(opened(folder))
    assert passed is False and "prompt 4 of 4 differs from token 7" in detail
