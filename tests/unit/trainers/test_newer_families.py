"""One optimizer step of each method on each newer family, on tiny checkpoints in the published layouts: what the
table of docs/rl.md allows learns, and what it does not is refused; and one LoRA step with LLaDA-8B's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import a2d_checkpoints
import command
import illada_folder
import mdlm_folder
import nemotron_folder
import open_dcoder_folder
import pytest
import torch
from paths import ROOT
from require import need_package
from torch import Tensor

import dare_bench
from dare_bench.errors import UsageError
from dare_bench.loading import load
from dare_bench.protocols import LoadedModel
from dare_bench.registry import registry
from dare_bench.training.rows import Kind, TokenRow, Tokens
from dare_bench.training.spec import train_spec
from dare_bench.types import Reward, RewardPrompt

need_package("accelerate")


def a2d(folder: Path) -> Path:
    return a2d_checkpoints.with_tokenizer(a2d_checkpoints.made(folder))


FAMILIES: dict[str, tuple[Callable[[Path], Path], str | None]] = {  # by the name in the documentation's table
    "A2D's mdlm": (a2d, "a2d_mdlm"),
    "A2D's bd3lm": (a2d, "a2d_bd3lm"),
    "MDLM": (mdlm_folder.written, None),
    "BD3-LM": (lambda folder: mdlm_folder.written(folder, 4), None),
    "iLLaDA": (illada_folder.written, None),
    "Open-dCoder": (open_dcoder_folder.written, "open_dcoder"),
    "Stable-DiffCoder": (lambda folder: illada_folder.written(folder, **illada_folder.DIFFCODER), None),
    "Nemotron-Labs-Diffusion": (nemotron_folder.written, None),
}
ON_ROWS, ON_PAIRS = ("sft", "dpo", "vrpo"), ("dpo", "vrpo")
GROUPS = (("d1", "coupled_grpo", "espo", "spg", "mdpo", "dtreerpo"), ("cj_grpo", "just_grpo", "bgpo", "ebpo"))
REASONS = {
    "never from a fully masked completion": r"needs fully masked completions, .*; use cj_grpo, just_grpo, bgpo or e",
    "from the end of the prompt": r"counted from the end of the prompt, .*; use sft, dpo or vrpo$",
}
"""What the table's last column says, and the end of the refusal."""


def table() -> dict[tuple[str, str], tuple[str, str]]:
    """(family, method) -> (what docs/rl.md says of it, and why not)."""
    said: dict[tuple[str, str], tuple[str, str]] = {}
    for line in (ROOT / "docs/rl.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for family in FAMILIES if len(cells) == 4 else ():
            if family in cells[0].split(", "):
                said |= {(family, name): (cells[1 + i], cells[3]) for i, group in enumerate(GROUPS) for name in group}
    return said


SAID = table()
REFUSED = [of for of, (answer, _) in SAID.items() if answer == "no"]
ALLOWED = [of for of, (answer, _) in SAID.items() if answer != "no"]


def test_the_table_has_every_family_and_method() -> None:
    methods = {entry.name for entry in registry().entries("trainer")}
    assert methods == {*ON_ROWS, *GROUPS[0], *GROUPS[1]}
    assert SAID.keys() == {(family, name) for family in FAMILIES for group in GROUPS for name in group}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp("families") / "of") for name, (make, _) in FAMILIES.items()}


class Scripted:
    """``Services`` whose rewards come in turn from a list."""

    def __init__(self, reopen: Callable[[], LoadedModel]) -> None:
        self.reopen, self.values = reopen, cycle((1.0, 0.0, 0.0, 0.5))

    def open(self, checkpoint: object) -> LoadedModel:
        return self.reopen()

    def rewards(self, prompts: object, texts: Sequence[str], options: object) -> list[Reward]:
        return [Reward(next(self.values), 0.0) for _ in texts]

    def counts(self, folder: Path) -> None:
        return None

    def lineage(self, folder: Path, step: int, *_: object, **__: object) -> None:
        (folder / "lineage.json").write_text(json.dumps({"step": step}))


def data_of(kind: Kind, canvas: int = 8) -> Tokens:
    """Two items of token ids that every vocabulary has, with prompts that end inside a block."""
    answers = {"examples": [(30, 31, 32)], "pairs": [(30, 31, 32), (40, 41)], "prompts": [()]}[kind]
    items = tuple(
        tuple(TokenRow(tuple(range(20, 25 + i)), answer, f"row {i}", 2 * i + j) for j, answer in enumerate(answers))
        for i in range(2)
    )
    prompts = tuple(RewardPrompt("", "", "scripted", f"row {i}") for i in range(2)) if kind == "prompts" else ()
    return Tokens(kind, items, "hash", kind, canvas, prompts)


def weights(model: Any) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.network.parameters()])


def step(folder: Path, family: str, name: str, out: Path) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The weights before and after a step, and what it logged."""

    def opened() -> LoadedModel:
        return load(folder, family=FAMILIES[family][1], device="cpu", dtype="float32").loaded

    model, kind = opened(), registry().get("trainer", name).load()
    given: dict[str, Any] = {}
    if kind.reads == "prompts":
        given = {"num_generations": 4 if name == "dtreerpo" else 2}
        given |= {"dtreerpo": {"tree_branch_factor": 2}, "bgpo": {"num_mc": 2}, "ebpo": {"num_mc": 2}}.get(name, {})
        if "--rollout alg=entropy" in SAID[family, name][0] or SAID[family, name][0].startswith("the same"):
            given |= {} if name == "just_grpo" else {"rollout": {"alg": "entropy"}}
    method, data = kind(kind.settle(given, model.spec), model.spec, 8), data_of(kind.reads)
    size = 2 * given.get("num_generations", 1)
    spec = train_spec(
        method=name, model="m", data="d", output_path=str(out), max_steps=1, logging_steps=1, report_to="none",
        per_device_train_batch_size=size, learning_rate=1e-3, warmup_steps=0, lr_scheduler_type="constant",
        weight_decay=0.0,
    )  # fmt: skip
    method.check(spec, model, data)
    before = weights(model).clone()
    method.fit(spec, model, data, out, Scripted(opened))
    (logged,) = [e for e in json.loads((out / "trainer_state.json").read_text())["log_history"] if "loss" in e]
    return before, weights(model), logged


@pytest.mark.parametrize(("family", "name"), ALLOWED)
def test_an_algorithm_learns_from_completions(folders: dict[str, Path], family: str, name: str, tmp_path: Path) -> None:
    """Where tokens are scored on the canvases that they were drawn from, sampler and learner see the same."""
    before, after, logged = step(folders[family], family, name, tmp_path)
    assert after.isfinite().all() and not torch.equal(before, after)
    if name in ("cj_grpo", "just_grpo"):
        assert logged["sampler_gap_max"] < 1e-4


@pytest.mark.parametrize("name", ON_PAIRS)
@pytest.mark.parametrize("family", FAMILIES)
def test_preferences_are_learned(folders: dict[str, Path], family: str, name: str, tmp_path: Path) -> None:
    before, after, _ = step(folders[family], family, name, tmp_path)
    assert after.isfinite().all() and not torch.equal(before, after)


@pytest.mark.parametrize("peft", [None, "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_fine_tuning_of_a_folder(folders: dict[str, Path], family: str, peft: str | None, tmp_path: Path) -> None:
    """From the published layout to one that opens as the same family; an adapter, on its base."""
    folder, name = folders[family], FAMILIES[family][1]
    out = dare_bench.train(
        method="sft", model=str(folder), family=name, task="dare_arithmetic", rows=8, max_steps=1, report_to=(),
        device="cpu", dtype="float32", learning_rate=1e-3, warmup_steps=0, output_path=str(tmp_path),
        **({} if peft is None else {"peft": peft}),
    )  # fmt: skip
    before = dare_bench.load(folder, family=name, device="cpu", dtype="float32")
    if peft:
        after = dare_bench.load(folder, family=name, device="cpu", dtype="float32", adapter=out.path)
    else:
        after = dare_bench.load(out.path, device="cpu", dtype="float32")
        published = json.loads((folder / "config.json").read_text())["architectures"]
        assert json.loads((out.path / "config.json").read_text())["architectures"] == published
    assert (after.spec.family, after.spec.mask_id) == (before.spec.family, before.spec.mask_id)
    ids = [1, 2, before.spec.mask]
    assert not torch.equal(after.logits(ids), before.logits(ids))


@pytest.mark.parametrize(("family", "name"), REFUSED)
def test_what_the_table_denies_is_refused_with_its_reason(folders: dict[str, Path], family: str, name: str) -> None:
    spec = load(folders[family], family=FAMILIES[family][1], device="cpu").spec
    kind = registry().get("trainer", name).load()
    why = next(said for words, said in REASONS.items() if words in SAID[family, name][1])
    with pytest.raises(UsageError, match=rf"^{name}.* {spec.family} .*{why}|^{name} {why}") as caught:
        kind(kind.settle({}, spec), spec, 8)
    assert "\n" not in str(caught.value)


GIB = 2**20  # in the kB of /proc
MEMORY = Path("/proc/meminfo")

STEP = r"""
import json, time
import peft, torch
from dare_bench.diffusion.masked_copies import pack
from dare_bench.diffusion.masked_copies import masked_copies
from dare_bench.diffusion.schedules import CleanCopies, NoiseSchedule, draw, weights
from dare_bench.diffusion.plan import Plan
from dare_bench.model_adapters.backbone.network import shapes_of
from dare_bench.model_adapters.llada import LLaDAConfig, LLaDAModelLM

MASK = 126336
CONFIG = LLaDAConfig(n_layers=2, d_model=1024, n_heads=8, n_kv_heads=8, mlp_hidden_size=3072)
TARGETS = r".*transformer\.blocks\.\d+\.(q_proj|k_proj|v_proj|attn_out|ff_proj|up_proj|ff_out)"

def peak():  # of this program alone: ru_maxrss begins with the parent's
    line = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))
    return int(line.split()[1])

torch.manual_seed(0)
start = time.perf_counter()
network = shapes_of(LLaDAModelLM, CONFIG).bfloat16().to_empty(device="cpu")
some = (0.02 * torch.randn(2**20 + 1)).bfloat16()  # repeated: 300 M normal numbers of their own take seconds
for p in network.parameters():
    for part in p.data.view(-1).split(len(some)):
        part.copy_(some[:len(part)] if p.dim() == 2 else torch.ones_like(part))
model = peft.get_peft_model(network, peft.LoraConfig(r=32, lora_alpha=16, target_modules=TARGETS)).train()
built, built_peak = time.perf_counter() - start, peak()

lengths = (10, 30), (5, 40), (3, 5)
rows = [tuple(torch.randint(MASK, (n,)).tolist() for n in pair) for pair in lengths]
batch, key_B = pack(rows), torch.arange(3)
noise = draw(NoiseSchedule("even"), CleanCopies(batch, key_B, torch.zeros(3, dtype=torch.long), 0))
copies = masked_copies(batch, noise.masked_T, MASK)
tokens_T, at_N, targets_N = copies.seen_T, copies.at_N, copies.target_N
weight_T = weights(noise, "elbo") / (3 * batch.response_lengths_B[batch.row_T])
trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
before = {n: p.detach().clone() for n, p in trained.items()}
frozen = [p for p in model.parameters() if not p.requires_grad]
optimizer = torch.optim.AdamW(trained.values(), lr=1e-4)
start = time.perf_counter()
nll_N = model(tokens_T, batch.column_T, Plan(batch.lengths), at_N, targets_N).nll
loss = torch.dot(nll_N.float(), weight_T[noise.masked_T].float())
loss.backward()
norm = torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
optimizer.step()
print(json.dumps({
    "peak": peak(), "built_peak": built_peak, "built_s": built, "step_s": time.perf_counter() - start,
    "loss": loss.item(), "norm": norm.item(), "masked": len(at_N), "tokens": len(tokens_T),
    "trained": sorted(trained), "moved": [n for n, p in trained.items() if not torch.equal(p, before[n])],
    "base": sum(p.numel() for p in frozen), "base_types": sorted({str(p.dtype) for p in frozen}),
    "base_grads": sum(p.grad is not None for p in frozen),
}))
"""


def available():
    """kB that a new process may take; None where the system does not say."""
    if not MEMORY.exists():
        return None
    return next(int(line.split()[1]) for line in MEMORY.read_text().splitlines() if line.startswith("MemAvailable"))


def test_one_lora_step_with_the_true_vocabulary_stays_within_its_memory(tmp_path):
    """Weights of 0.6 GB in bfloat16; a copy of them in float32 alone would take 1.2 GB more."""
    need_package("peft")
    if (available() or 0) < 2 * GIB:
        pytest.skip("takes 2 GB of free memory, read from /proc/meminfo")
    (tmp_path / "step.py").write_text(STEP)
    done = command.run(script=tmp_path / "step.py")
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["peak"] < 1.6e9 / 1024, seen
    assert 2.8e8 < seen["base"] < 3e8 and seen["base_types"] == ["torch.bfloat16"]
    assert seen["masked"] > 20
    assert 8 < seen["loss"] < 16  # weights that know nothing: about log V = 11.7 a token
    assert len(seen["trained"]) == 2 * 7 * 2 and all("lora" in name for name in seen["trained"])
    assert seen["base_grads"] == 0
    assert seen["norm"] > 0 and any("lora_B" in name for name in seen["moved"])
