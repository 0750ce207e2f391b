"""Names of trainings."""

from __future__ import annotations

from dare_bench.analysis.names import method_of


def test_methods_have_their_usual_spelling() -> None:
    names = ("sft", "vrpo", "cj_grpo", "coupled_grpo", "d1", "dtreerpo", "just_grpo", "my_method")
    spelled = [method_of({"method": name}) for name in names]
    assert spelled == ["SFT", "VRPO", "CJ-GRPO", "coupled-GRPO", "d1", "d-TreeRPO", "JustGRPO", "my_method"]
    assert method_of({"method": "sft", "peft": "lora"}, ["seed 1"]) == "SFT (LoRA, seed 1)"
