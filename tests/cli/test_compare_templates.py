"""The sweep of docs/example-templates with few documents, and ``dare-bench compare --templates`` of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from paths import ROOT

from dare_bench.cli import main


@pytest.mark.slow
def test_decoders_under_five_templates_of_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    sweep = yaml.safe_load((ROOT / "docs" / "example-templates" / "sweep.yaml").read_text())
    for entry in sweep["eval"]:
        entry |= {"limit": 12, "gen_kwargs": [{"steps": 1}, {"steps": 4}]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    with pytest.raises(SystemExit) as left:
        main(["sweep", str(tmp_path / "sweep.yaml"), "-o", str(tmp_path / "out")])
    assert not left.value.code
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["compare", str(tmp_path / "out" / "runs"), "--templates", "--json"])
    assert not left.value.code
    (found,) = json.loads(capsys.readouterr().out)["templates"]
    assert found["documents"] == 12 and found["unpaired"] == 0 and found["warnings"] == []
    assert [decoder["name"] for decoder in found["decoders"]] == ["steps 1", "steps 4"]
    assert len({template["fingerprint"] for template in found["templates"]}) == 5
    assert {template["name"] for template in found["templates"]} == {
        "dare_arithmetic, no chat template, 0-shot",
        "dare_arithmetic, no chat template, 2-shot",
        "dare_arithmetic, chat template, 0-shot",
        "dare_arithmetic_line, no chat template, 0-shot",
        "dare_arithmetic_question, no chat template, 0-shot",
    }
    # The checkpoint knows the task as it is, and no other wording.
    assert all(
        max(decoder["scores"]) == 1.0 and decoder["scores"][decoder["worst"]] < 0.5 for decoder in found["decoders"]
    )
