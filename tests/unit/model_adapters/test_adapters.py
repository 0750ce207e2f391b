"""LoRA: what it adapts, what it leaves alone, and that it comes back from disk bit for bit."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear

from dare_bench import fingerprint
from dare_bench.diffusion.plan import Plan
from dare_bench.errors import CheckpointError, SaveError, UsageError
from dare_bench.loading import load
from dare_bench.model_adapters.backbone.layers import Layer
from dare_bench.model_adapters.backbone.moe import Router
from dare_bench.model_adapters.targets import choose, published
from dare_bench.protocols import AdapterSettings

peft = pytest.importorskip("peft")

IDS = list(range(5, 45))
FAMILIES = ("llada", "dream", "sdar", "llada2")
EVERYTHING = ("attention", "mlp", "router", "experts", "head")
QWEN_ATTENTION = [f"self_attn.{name}_proj" for name in "qkvo"]
QWEN_MLP = [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
LAYERS = {
    "llada": ("model.transformer.blocks", ["q_proj", "k_proj", "v_proj", "attn_out"], ["ff_proj", "up_proj", "ff_out"]),
    "dream": ("model.layers", QWEN_ATTENTION, QWEN_MLP),
    "sdar": ("model.layers", QWEN_ATTENTION, QWEN_MLP),
}
HEADS = {"llada": "model.transformer.ff_out", "dream": "lm_head", "sdar": "lm_head", "llada2": "lm_head"}


def adapted(family: str, targets: tuple[str, ...] = ("attention", "mlp"), steps: int = 2, **more: Any) -> Any:
    """A tiny model with an adapter, trained for some steps so that it changes the logits."""
    model = load(f"tiny-{family}-base", **more)
    model.loaded.add_adapter(AdapterSettings(r=4, alpha=8, targets=targets))
    train(model, steps)
    return model


def train(model: Any, steps: int) -> None:
    weights = [p for p in model.network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=5e-3)
    for _ in range(steps):
        model.network(torch.tensor([IDS]), targets=torch.tensor(IDS)).nll.mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, torch.Tensor]]:
    """By family: the folder of a trained adapter, and the logits that it was saved with."""
    result = {}
    for family in FAMILIES:
        model, folder = adapted(family), tmp_path_factory.mktemp(family) / "lora"
        model.save(folder)
        result[family] = folder, model.logits(IDS)
    return result


@pytest.fixture
def folder(trained: dict[str, tuple[Path, torch.Tensor]], tmp_path: Path) -> Path:
    """A copy of the LLaDA adapter to damage."""
    return Path(shutil.copytree(trained["llada"][0], tmp_path / "lora-x"))


def edit(folder: Path, **fields: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


# -- what is adapted ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted(LAYERS))
def test_groups_of_dense_families(family: str) -> None:
    network = load(f"tiny-{family}-base").network
    layers, attention, mlp = LAYERS[family]
    want = {
        "attention": {f"{layers}.{i}.{name}" for i in range(5) for name in attention},
        "mlp": {f"{layers}.{i}.{name}" for i in range(5) for name in mlp},
        "head": {HEADS[family]},
    }
    for group, names in want.items():
        assert set(choose(network, [group]).modules) == names
    for group in ("router", "experts"):
        with pytest.raises(UsageError, match=f"'{group}' matches nothing in this model: it has no experts"):
            choose(network, [group])


def test_groups_of_experts() -> None:
    network = load("tiny-llada2-base").network
    assert set(choose(network, ["attention"]).modules) == {
        f"model.layers.{i}.attention.{name}" for i in range(5) for name in ("query_key_value", "dense")
    }
    dense = {f"model.layers.0.{name}" for name in QWEN_MLP}
    shared = {f"model.layers.{i}.{n.replace('mlp', 'mlp.shared_experts')}" for i in range(1, 5) for n in QWEN_MLP}
    assert set(choose(network, ["mlp"]).modules) == dense | shared
    assert set(choose(network, ["router"]).modules) == {f"model.layers.{i}.mlp.gate" for i in range(1, 5)}
    experts = choose(network, ["experts"])
    leaves = ("gate_up_proj", "down_proj")
    assert experts.modules == () and experts.target_modules == []
    assert set(experts.parameters) == {f"model.layers.{i}.mlp.experts.{leaf}" for i in range(1, 5) for leaf in leaves}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("words", [("attention", "mlp"), ("mlp",), ("head",), ("*.0.*",), ("*.1.*", "*.3.*", "head")])
def test_peft_adapts_exactly_what_is_chosen(family: str, words: tuple[str, ...]) -> None:
    model = load(f"tiny-{family}-base")
    chosen = choose(model.network, words)
    assert len(chosen.modules) > 0
    model.loaded.add_adapter(AdapterSettings(r=2, targets=words))
    got = {name for name, module in model.network.get_base_model().named_modules() if hasattr(module, "lora_A")}
    assert got == set(chosen.modules)


def test_names_mean_layers_and_special_parts_only_by_their_own_name() -> None:
    llada, llada2 = load("tiny-llada-base").network, load("tiny-llada2-base").network
    assert choose(llada, ["ff_out"]).modules == tuple(f"model.transformer.blocks.{i}.ff_out" for i in range(5))
    assert choose(llada, ["model.transformer.ff_out"]).modules == ("model.transformer.ff_out",)
    assert set(choose(llada, ["*"]).modules) == set(choose(llada, ["attention", "mlp"]).modules)
    everywhere = choose(llada2, ["down_proj"])
    assert not everywhere.parameters and all("experts" not in m or "shared" in m for m in everywhere.modules)
    assert choose(llada2, ["mlp.experts.down_proj"]).target_parameters == ["mlp.experts.down_proj"]
    assert len(choose(llada2, ["mlp.gate"]).modules) == 4
    item = choose(llada2, ["model.layers.2.mlp.experts.gate_up_proj", "lm_head"])
    assert item.target_parameters == ["model.layers.2.mlp.experts.gate_up_proj"] and item.target_modules == "lm_head"


def test_a_word_that_matches_nothing_is_told_what_there_is() -> None:
    network = load("tiny-llada-base").network
    with pytest.raises(
        UsageError, match=r"'o_proj' matches nothing .* groups: attention, mlp, head; names: q_proj, .*"
    ):
        choose(network, ["attention", "o_proj"])
    with pytest.raises(UsageError, match="no LoRA target is given"):
        choose(network, [])


def test_a_model_of_experts_alone_has_no_mlp(monkeypatch: pytest.MonkeyPatch) -> None:
    network = load("tiny-llada2-base").network
    there = {**published(network), "mlp": []}
    monkeypatch.setattr("dare_bench.model_adapters.targets.published", lambda _: there)
    with pytest.raises(UsageError, match="name 'experts' to adapt them"):
        choose(network, ["mlp"])


# -- what it changes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "targets"), [*((f, ("attention", "mlp")) for f in FAMILIES), ("llada2", EVERYTHING)]
)
def test_off_is_base_and_merged_is_on(family: str, targets: tuple[str, ...]) -> None:
    base = load(f"tiny-{family}-base").logits(IDS)
    model = adapted(family, targets, steps=0)
    assert torch.equal(model.logits(IDS), base), "a new adapter changes nothing"
    assert all(p.requires_grad == ("lora_" in name) for name, p in model.network.named_parameters())
    train(model, 2)
    grown = [name for name, p in model.network.named_parameters() if "lora_B" in name and not bool(p.any())]
    assert grown == [], "every adapter learns"
    on, answer = model.logits(IDS), model.generate([IDS[:7]], gen_length=8)[0].tokens
    assert not torch.allclose(on, base, atol=1e-2)
    with model.loaded.without_adapter():
        assert torch.equal(model.logits(IDS), base)
    assert torch.equal(model.logits(IDS), on)
    model.loaded.merge_adapter()
    assert (model.logits(IDS) - on).abs().max() <= 1e-5 * on.abs().max()
    assert model.generate([IDS[:7]], gen_length=8)[0].tokens == answer
    assert all(p.requires_grad for p in model.network.parameters())


def test_likelihoods_and_caches_see_the_adapter(trained: dict[str, tuple[Path, torch.Tensor]]) -> None:
    for family in FAMILIES:
        on = load(trained[family][0])
        merged = load(trained[family][0])
        merged.loaded.merge_adapter()
        pairs = [(IDS[:9], IDS[9:12])]
        assert on.loglikelihood(pairs)[0].value == pytest.approx(merged.loglikelihood(pairs)[0].value, abs=1e-3)
        assert on.loglikelihood(pairs)[0].value != load(f"tiny-{family}-base").loglikelihood(pairs)[0].value
        assert on.generate([IDS[:6]] * 2, gen_length=8)[1].tokens == merged.generate([IDS[:6]], gen_length=8)[0].tokens


def test_adapter_weights_are_float32_in_training_and_evaluation(trained: dict[str, tuple[Path, torch.Tensor]]) -> None:
    new = adapted("llada2", ("attention", "router", "experts"), steps=1, dtype="bfloat16")
    opened = load(trained["llada2"][0], dtype="bfloat16")
    for model in (new, opened):
        assert {p.dtype for p in model.network.parameters() if p.requires_grad} == {torch.float32}
        assert {p.dtype for p in model.network.parameters() if not p.requires_grad} == {torch.bfloat16}
        assert model.logits(IDS).shape == (len(IDS), model.spec.vocab_size)


def test_the_start_depends_on_the_seed_alone() -> None:
    def start(seed: int) -> dict[str, torch.Tensor]:
        model = load("tiny-dream-base")
        model.loaded.add_adapter(AdapterSettings(r=2, targets=("q_proj",), seed=seed))
        return {name: p for name, p in model.network.named_parameters() if "lora_A" in name}

    torch.manual_seed(1)
    first = start(7)
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), after), "the stream outside goes on as if nothing had been drawn"
    again, other = start(7), start(8)
    assert all(torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name]) for name in first)


def test_what_an_adapter_cannot() -> None:
    model = load("tiny-llada2-base")
    for ask in (model.loaded.without_adapter, model.loaded.merge_adapter):
        with pytest.raises(UsageError, match="the model has no adapter"):
            ask()
    with pytest.raises(UsageError, match=r"LoRA on experts takes no dropout, lora_dropout=0.1"):
        model.loaded.add_adapter(AdapterSettings(targets=("experts",), dropout=0.1))
    model.loaded.add_adapter(AdapterSettings(targets=("attention",), dropout=0.1))
    with pytest.raises(UsageError, match="has an adapter already"):
        model.loaded.add_adapter(AdapterSettings())


def test_the_router_is_called_and_gives_float32_values() -> None:
    x = torch.randn(6, 16).bfloat16()
    for in_float32 in (True, False):
        router = Router(16, 4, in_float32).bfloat16()
        kind = torch.float32 if in_float32 else torch.bfloat16
        assert torch.equal(router(x), linear(x.to(kind), router.weight.to(kind)).float())
    layer: Layer = load("tiny-llada2-base").network.model.layers[1]
    calls: list[int] = []
    layer.part("router").register_forward_hook(lambda *_: calls.append(1))
    layer._feed_forward(torch.randn(3, 128), Plan((3,)))
    assert calls == [1]


# -- to disk and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_opens_in_every_way(family: str, trained: dict[str, tuple[Path, torch.Tensor]]) -> None:
    folder, want = trained[family]
    assert sorted(file.name for file in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == f"tiny-{family}-base"
    beside, alone = load(f"tiny-{family}-base", adapter=folder), load(folder)
    assert torch.equal(beside.logits(IDS), want) and torch.equal(alone.logits(IDS), want)
    assert beside.adapter == folder and beside.path == alone.path == load(f"tiny-{family}-base").path
    reference = peft.PeftModel.from_pretrained(load(f"tiny-{family}-base").network, str(folder))
    same = reference(torch.tensor([IDS])).logits[0]
    assert torch.equal(same, alone.network(torch.tensor([IDS])).logits[0]), "peft opens what is saved"


def test_experts_come_back(tmp_path: Path) -> None:
    model = adapted("llada2", EVERYTHING, steps=1)
    model.save(tmp_path / "all")
    assert torch.equal(load(tmp_path / "all").logits(IDS), model.logits(IDS))
    other = adapted("llada2", EVERYTHING, steps=2)
    other.loaded.read_weights(tmp_path / "all")
    assert torch.equal(other.logits(IDS), model.logits(IDS))


@pytest.mark.parametrize("family", ["llada", "llada2"])
def test_read_weights_of_a_whole_network(family: str, tmp_path: Path) -> None:
    model = load(f"tiny-{family}-base")
    weights = [*model.network.parameters()]
    before = model.logits(IDS)
    with torch.no_grad():
        for weight in weights:
            weight.add_(torch.randn_like(weight) * 1e-3)
    model.loaded.save(tmp_path / "step", state_dict=model.network.state_dict())
    after = model.logits(IDS)
    again = load(f"tiny-{family}-base")
    held = [*again.network.parameters()]
    again.loaded.read_weights(tmp_path / "step")
    assert torch.equal(again.logits(IDS), after) and not torch.equal(after, before)
    assert all(a is b for a, b in zip(held, again.network.parameters(), strict=True)), "in place"
    wrong = load("tiny-dream-base")
    with pytest.raises(CheckpointError, match="weights missing"):
        wrong.loaded.read_weights(tmp_path / "step")


def test_a_gathered_state_is_saved_as_it_is(tmp_path: Path) -> None:
    model = adapted("llada")
    state = {name: value + 1 if "lora_" in name else value for name, value in model.network.state_dict().items()}
    model.save(tmp_path / "own")
    model.loaded.save(tmp_path / "gathered", state_dict=state)
    own, gathered = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("own", "gathered"))
    assert own.keys() == gathered.keys() and all(torch.equal(own[name] + 1, gathered[name]) for name in own)


def test_one_folder_holds_one_kind(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="contains an adapter"):
        load("tiny-llada-base").save(folder)
    load("tiny-llada-base").save(tmp_path / "whole")
    with pytest.raises(SaveError, match="contains a full checkpoint"):
        load(folder).save(tmp_path / "whole")
    load(folder).save(folder)
    assert load(folder).logits(IDS).shape[0] == len(IDS)


def test_a_training_goes_on_from_an_adapter(folder: Path, tmp_path: Path) -> None:
    model = load(folder)
    before = model.logits(IDS)
    train(model, 1)
    model.save(tmp_path / "further")
    assert torch.equal(load(tmp_path / "further").logits(IDS), model.logits(IDS))
    assert not torch.equal(model.logits(IDS), before)


def test_lineage_of_the_base_does_not_travel(tmp_path: Path) -> None:
    model = load("tiny-llada-base")
    model.save(tmp_path / "first")
    (tmp_path / "first" / "lineage.json").write_text("{}")
    load(tmp_path / "first").save(tmp_path / "second")
    assert not (tmp_path / "second" / "lineage.json").exists()


# -- refused -----------------------------------------------------------------------------------------------------------


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


def test_wrong_bases_are_refused_in_one_line(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="does not fit the model") as unknown:
        load("tiny-dream-base", adapter=folder)
    assert one_line(unknown.value).endswith(
        "; the adapter was trained on 'tiny-llada-base', and the base here is 'tiny-dream-base'; its folder alone, as "
        "the model, opens it with its own base"
    )
    with pytest.raises(CheckpointError, match="weights that the base model does not know") as fewer:
        load(golden.FOLDER, adapter=folder)
    one_line(fewer.value)
    edit(folder, r=8)
    with pytest.raises(CheckpointError, match=r"has shape \[4, 128\], the base model says \[8, 128\]") as shape:
        load(folder)
    one_line(shape.value)


def test_another_base_of_the_same_shape_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    load("tiny-llada-base", adapter=folder)
    assert not caplog.messages
    load("tiny-llada", adapter=folder)
    assert caplog.messages == [
        f"{folder}: the adapter was trained on 'tiny-llada-base', and the base here is 'tiny-llada'; its folder alone, "
        "as the model, opens it with its own base"
    ]


def test_damaged_adapters_are_refused(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    name = next(iter(weights))
    save_file({**weights, name: weights[name] * float("nan")}, file)
    with pytest.raises(CheckpointError, match=re.escape(f"{name} holds")):
        load(folder)
    save_file({key: value for key, value in weights.items() if key != name}, file)
    with pytest.raises(CheckpointError, match="1 of 70 weights missing"):
        load(folder)
    file.rename(folder / "adapter_model.bin")
    for opening in (lambda: load(folder), lambda: fingerprint.content_hash(folder)):
        with pytest.raises(CheckpointError, match=r"adapter_model\.bin is a pickle"):
            opening()


def test_configs_that_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no adapter_config\.json in it"):
        load("tiny-llada-base", adapter=load("tiny-llada").path)
    with pytest.raises(UsageError, match="an adapter, of 'tiny-llada-base'"):
        load(folder, adapter=folder)
    edit(folder, peft_type="IA3")
    with pytest.raises(CheckpointError, match="peft_type='IA3'; only LORA"):
        load(folder)
    edit(folder, peft_type="LORA", base_model_name_or_path=str(tmp_path / "gone"))
    with pytest.raises(CheckpointError, match="give model=BASE and adapter="):
        load(folder)
