"""The decoding fields of rollouts: published ones by variant and family, on canvases of any length, under those given.

``tests/parity/published_losses.json`` has the published recipes, which ``test_published_losses.py`` compares.
"""

from __future__ import annotations

import json
import logging
from functools import cache

import pytest
from require import need_package

from dare_bench.errors import DecodingError, UsageError
from dare_bench.loading import load
from dare_bench.registry import registry
from dare_bench.trainers.rl.options import divisor
from dare_bench.training.run import train
from dare_bench.training.spec import train_spec
from dare_bench.types import ModelSpec

need_package("accelerate")
HALF, QUARTER = {"steps": 128}, {"steps": 64}
BLOCKS, CUT = {"block_length": 32}, {"top_p": 0.95}
WHOLE = {"block_length": 256}
SDAR = {"top_k": 50, "confidence_threshold": 0.9}
AT_256 = {
    # method: family: (temperature and fields of the paper, of DARE)
    "d1": {
        "llada": ((0.9, HALF | BLOCKS), (0.6, HALF | BLOCKS)),
        "dream": ((0.9, HALF), (0.2, HALF | CUT)),
    },
    "spg": {
        "llada": ((0.9, HALF | BLOCKS), (0.6, HALF | BLOCKS)),
        "dream": ((0.9, HALF), (0.2, HALF | CUT)),
    },
    "dtreerpo": {
        "llada": ((0.9, HALF | BLOCKS), (0.9, HALF | BLOCKS)),
        "dream": ((0.9, HALF), (0.9, HALF)),
    },
    "coupled_grpo": {
        "llada": ((1.0, {"steps": 256} | WHOLE), (0.6, HALF | BLOCKS)),
        "dream": ((1.0, {"steps": 256} | CUT), (0.2, HALF | CUT)),
    },
    "espo": {
        "llada": ((1.0, {"steps": 256} | BLOCKS), (1.0, HALF | BLOCKS)),
        "dream": ((1.0, {"steps": 256} | CUT), (1.0, HALF)),
    },
    "mdpo": {
        "llada": ((0.4, QUARTER | WHOLE), (0.6, HALF | WHOLE)),
        "dream": ((0.4, QUARTER), (0.2, HALF)),
    },
    "cj_grpo": {
        "llada": ((1.0, HALF | {"block_length": 128}), (0.6, HALF | BLOCKS)),
        "dream": ((1.0, HALF), (0.2, HALF | CUT)),
        "sdar": ((1.0, {}), (1.0, SDAR | {"confidence_threshold": 0.95})),
        "llada2": ((1.0, {}), (0.6, {"top_k": 50} | CUT)),
    },
    "bgpo": {
        "llada": ((0.6, HALF | BLOCKS), (0.6, HALF | BLOCKS)),
        "dream": ((0.6, HALF), (0.2, HALF | CUT)),
        "sdar": ((0.6, {}), (1.0, SDAR)),
        "llada2": ((0.6, {}), (0.6, {})),
    },
    "ebpo": {
        "llada": ((0.6, HALF | BLOCKS), (0.6, HALF | BLOCKS)),
        "dream": ((0.2, HALF | CUT), (0.2, HALF | CUT)),
        "sdar": ((1.0, SDAR), (1.0, SDAR)),
        "llada2": ((0.6, {}), (0.6, {})),
    },
    "just_grpo": {family: ((1.0, {}), (0.6, {})) for family in ("llada", "dream", "sdar", "llada2")},
}
CASES = [(name, family, variant) for name, of in AT_256.items() for family in of for variant in ("paper", "dare")]


@cache
def tiny(family):
    return load(f"tiny-{family}-base", device="cpu").loaded


def method_of(name, family, **options):
    kind, model = registry().get("trainer", name).load(), tiny(family)
    return kind(kind.settle(options, model.spec), model.spec, None)


@pytest.mark.parametrize(("name", "family", "variant"), CASES)
def test_every_method_samples_as_published(name, family, variant):
    temperature, fields = AT_256[name][family][variant == "dare"]
    method = method_of(name, family, variant=variant)
    assert (method.options.temperature, method.decoding_fields) == (temperature, fields)
    assert method.request(()).items() >= {**fields, "gen_length": 256, "temperature": temperature}.items()


def test_the_table_has_all_methods_and_the_families_that_they_train():
    assert AT_256.keys() == {name for name in registry().names("trainer") if name not in ("sft", "dpo", "vrpo")}
    for name in AT_256.keys() - {"cj_grpo", "bgpo", "ebpo", "just_grpo"}:
        with pytest.raises(UsageError, match="use cj_grpo"):
            method_of(name, "sdar")


@pytest.mark.parametrize(("name", "family", "variant"), CASES)
def test_every_canvas_can_be_sampled(name, family, variant):
    for canvas in (2, 7, 14, 16, 20, 32, 37, 48, 100, 250, 512):
        method = method_of(name, family, variant=variant, max_completion_length=canvas)
        decoding = tiny(family).resolve(method.request(()))  # raises DecodingError
        assert getattr(decoding, "block_length", None) is None or decoding.block_length <= max(canvas, 32)
        # As many tokens in a forward as on 256, up to rounding in every block.
        share, blocks = AT_256[name][family][variant == "dare"][1].get("steps", 0) / 256, canvas
        if share:
            blocks = canvas // (getattr(decoding, "block_length", None) or canvas)
            assert abs(decoding.steps - share * canvas) <= blocks / 2


def test_blocks_divide_the_canvas():
    assert [divisor(canvas, 32) for canvas in (16, 20, 32, 48, 64, 100, 250)] == [16, 20, 32, 24, 32, 25, 25]
    assert [divisor(canvas, 32) for canvas in (37, 74, 254)] == [37, 74, 254], "no divisor near 32: one block"


def test_given_fields_win_one_by_one():
    def fields(family="llada", **rollout):
        return method_of("d1", family, variant="dare", rollout=rollout).decoding_fields

    assert fields(steps=64) == {"steps": 64, "block_length": 32}
    assert fields(block_length=64) == {"steps": 128, "block_length": 64}
    assert fields(block_length=256, steps=7) == {"steps": 7, "block_length": 256}
    assert fields(remasking="random") == {"steps": 128, "block_length": 32, "remasking": "random"}
    assert fields("dream", top_p=0.5) == {"steps": 128, "top_p": 0.5}
    assert method_of("d1", "dream", variant="dare", temperature=0.7).options.temperature == 0.7


def test_another_strategy_takes_the_place_of_steps_and_blocks():
    for family, left in (("llada", {}), ("dream", CUT)):
        method = method_of("d1", family, variant="dare", rollout={"strategy": "ascending"})
        assert method.decoding_fields == {"strategy": "ascending", **left}
        tiny(family).resolve(method.request(()))


def test_a_served_engine_is_asked_for_cuts_alone():
    """Its server's algorithm decides how many tokens a forward writes."""
    served = {"rollout_engine": "sglang", "rollout_engine_url": "http://127.0.0.1:9"}
    method = method_of("ebpo", "sdar", **served)
    assert method.decoding_fields == {"top_k": 50}
    assert method.served_request(()).items() >= {"top_k": 50, "temperature": 1.0}.items()


@pytest.mark.parametrize("value", [0, -2, 300, "x", 32.0])
def test_an_invalid_block_length_is_the_samplers_error(value):
    method = method_of("d1", "llada", rollout={"block_length": value})
    if value == 32.0:
        assert tiny("llada").resolve(method.request(())).block_length == 32
        return
    with pytest.raises(DecodingError, match="block_length"):
        tiny("llada").resolve(method.request(()))


def test_a_training_prints_and_records_what_it_resolves_to(tmp_path, caplog):
    caplog.set_level(logging.INFO, "dare_bench")
    fields = {
        "method": "d1", "model": "tiny-llada-base", "task": "dare_arithmetic", "rows": 8, "num_generations": 4,
        "per_device_train_batch_size": 4, "max_steps": 1, "report_to": (), "output_path": str(tmp_path / "out"),
    }  # fmt: skip
    train(**fields, rollout="remasking=random")
    (line,) = (record.getMessage() for record in caplog.records if record.getMessage().startswith("rollout ("))
    assert line == "rollout (paper): max_completion_length=4 temperature=0.9 steps=2 block_length=4 remasking=random"
    resolved = {"steps": 2, "block_length": 4, "remasking": "random"}
    for file, path in (("lineage.json", ("options",)), ("train.json", ("settings", "options"))):
        record = json.loads((tmp_path / "out" / file).read_text())
        for name in path:
            record = record[name]
        assert record["rollout"] == resolved, file
    train(**fields, rollout="remasking=random,steps=2")  # the same training
    with pytest.raises(UsageError, match=r"rollout was .*\"steps\": 2.*now .*\"steps\": 4"):
        train(**fields, rollout="remasking=random,steps=4")


@pytest.mark.parametrize("name", ["d1", "spg", "cj_grpo", "espo", "dtreerpo"])
def test_an_adapter_has_the_published_size_and_a_full_training_the_rate_of_full_recipes(name):
    kind = registry().get("trainer", name).load()

    def settings(**given):
        spec = train_spec(method=name, model="m", task="dare_sort", output_path="out", **given).with_defaults(kind)
        assert train_spec(**spec.model_dump()) == spec, "a recorded training can be opened again"
        return spec.lora_r, spec.lora_alpha, spec.learning_rate

    adapter_rate = 3e-5 if name == "dtreerpo" else 3e-6
    assert settings(peft="lora") == (128, 64.0, adapter_rate)
    assert settings(peft="lora", lora_r=8) == (8, 64.0, adapter_rate)
    assert settings() == (32, 16.0, 1e-6)


# -- The variants of the algorithms' settings --------------------------------------------------------------------------


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
