"""The variants of the algorithms' settings."""

from __future__ import annotations

import json

import pytest
from require import need_package

from dare_bench.errors import UsageError
from dare_bench.loading import load
from dare_bench.registry import registry
from dare_bench.training.run import train
from dare_bench.training.spec import train_spec
from dare_bench.types import ModelSpec

need_package("accelerate")
ALGORITHMS = ("d1", "coupled_grpo", "cj_grpo", "espo", "just_grpo", "bgpo", "spg", "mdpo")


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return load("tiny-llada-base", device="cpu").loaded.spec


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_variant_changes_what_it_names_and_nothing_else(name, spec):
    kind = registry().get("trainer", name).load()
    paper, dare = (kind.settle({"variant": variant}, spec) for variant in ("paper", "dare"))
    assert kind.settle({}, spec) == paper and paper == kind.Options()
    changed = {field for field in kind.Options.model_fields if getattr(paper, field) != getattr(dare, field)}
    assert changed == {"variant", *kind.variants["dare"]}, "a value that equals the paper's is no change"


def test_given_settings_override_the_variant(spec):
    kind = registry().get("trainer", "d1").load()
    options = kind.settle({"variant": "dare", "beta": 0.5, "epsilon": 0.5}, spec)
    assert (options.beta, options.epsilon, options.dual_clip, options.num_iterations) == (0.5, 0.5, 3.0, 1)


@pytest.mark.parametrize("value", ["trl", ["dare"]])
def test_an_unknown_variant_names_the_known_ones(value, spec):
    with pytest.raises(UsageError, match=r"variant.*'paper' or 'dare'"):
        registry().get("trainer", "espo").load().settle({"variant": value}, spec)


def test_the_lineage_records_what_a_variant_resolves_to(tmp_path):
    train(
        method="coupled_grpo", model="tiny-llada-base", task="dare_arithmetic", rows=16, output_path=str(tmp_path),
        per_device_train_batch_size=4, max_steps=1, report_to=(), variant="dare", num_generations=4,
    )  # fmt: skip
    options = json.loads((tmp_path / "lineage.json").read_text())["options"]
    kind = registry().get("trainer", "coupled_grpo").load()
    assert options.items() >= {**kind.variants["dare"], "variant": "dare", "num_generations": 4}.items()


def test_the_default_batch_is_one_group():
    def batch(name, **fields):
        spec = train_spec(method=name, model="m", task="dare_sort", output_path="out", **fields)
        return spec.with_defaults(registry().get("trainer", name).load()).per_device_train_batch_size

    assert [batch(name) for name in ALGORITHMS] == [6, 10, 6, 10, 16, 8, 6, 8]
    assert batch("d1", options={"num_generations": "4"}) == 4
    assert batch("coupled_grpo", options={"variant": "dare"}) == 8
    assert batch("d1", per_device_train_batch_size=12) == 12
    assert batch("d1", options={"num_generations": "many"}) == batch("sft") == 8
