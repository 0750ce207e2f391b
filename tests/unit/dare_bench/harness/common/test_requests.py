"""What a strategy's name alone means in a task: its published settings, as far as there are any."""

from __future__ import annotations

from typing import Any

import pytest

import dare_bench
from dare_bench.harness.common.requests import RequestBuilder
from dare_bench.registry import registry

CANVAS = {"gen_length": 256, "block_length": 64, "steps": 256}
KLASS = {"name": "klass", "conf_threshold": 0.6, "kl_threshold": 0.015}
CORPUS = {"num_token": 10, "counts": {"5": 3}}


def asked(task: str, model: str = "tiny-llada", **user: Any) -> tuple[dict[str, Any], list[str]]:
    """The fields of a request of a task that sets 128 tokens, and the notes."""
    builder = RequestBuilder(dare_bench.load(model).loaded, user, {}, 0)
    fields = builder.decoding(task, {"until": ["Q:"], "max_gen_toks": 128})
    assert fields.pop("stop") == ["Q:"]
    return fields, builder.notes


def test_a_name_alone_takes_the_settings_of_family_and_benchmark() -> None:
    fields, (note,) = asked("gsm8k_cot", strategy="klass")
    assert fields == {**CANVAS, "strategy": KLASS}
    assert "published settings of klass: gen_length=256, steps=256, block_length=64, conf_threshold=0.6" in note
    assert asked("GSM8K", strategy={"name": "klass"})[0] == fields, "as OpenCompass may write it"
    dream, _ = asked("minerva_math_algebra", "tiny-dream", strategy="klass")
    assert dream == {
        "gen_length": 256,
        "steps": 256,
        "strategy": {**KLASS, "conf_threshold": 0.9, "kl_threshold": 0.005},
    }


def test_what_the_user_sets_of_the_answer_replaces_all_of_it() -> None:
    assert asked("gsm8k", strategy="klass", gen_length=64)[0] == {"gen_length": 64, "strategy": KLASS}


@pytest.mark.parametrize(
    "strategy", [{"name": "klass", "kl_threshold": 0.5}, "quota", {"name": "threshold", "threshold": 0.9}]
)
def test_settings_of_the_user_stay_as_they_are(strategy: Any) -> None:
    assert asked("gsm8k", strategy=strategy) == ({"gen_length": 128, "strategy": strategy}, [])


def test_a_benchmark_without_them_has_the_defaults_of_the_code_and_a_note() -> None:
    for task, model in (
        ("mathqa", "tiny-llada"),
        ("dare_sudoku", "tiny-llada"),
        ("humaneval_single_line", "tiny-llada"),
    ):
        fields, (note,) = asked(task, model, strategy="klass")
        assert fields == {"gen_length": 128, "strategy": "klass"} and "no published settings" in note


def test_fields_that_must_be_given_may_stand_beside_the_name() -> None:
    fields, _ = asked("mbpp", strategy={"name": "pc_sampler", "background": CORPUS})
    assert fields["strategy"] == {"name": "pc_sampler", "background": CORPUS, "alpha": 10.0, "lambd": 0.25}
    assert fields["gen_length"] == fields["block_length"] == fields["steps"] == 128


@pytest.mark.parametrize("name", ["klass", "wino", "prophet", "pc_sampler", "daedal", "d3llm"])
def test_all_of_them_are_settings_of_their_strategy_and_family(name: str) -> None:
    kind = registry().get("strategy", name).load()
    given = {"background": CORPUS} if name == "pc_sampler" else {}
    for part in kind.published:
        for family in part.families:
            fields = {**part.answer, "strategy": {"name": name, **given, **part.fields}}
            assert (
                dare_bench.load(f"tiny-{family}").loaded.resolve(fields).strategy.recorded().items()
                >= part.fields.items()
            )
