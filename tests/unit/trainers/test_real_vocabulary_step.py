"""One LoRA step on LLaDA-8B's shape with two layers and the true vocabulary of 126,464, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import command
import pytest
from require import need_package

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
TARGETS = r".*transformer\.blocks\.\d+\.(q_proj|k_proj|v_proj|attn_out|ff_proj|up_proj|ff_out)"

def peak():  # of this program alone: ru_maxrss begins with the parent's
    line = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))
    return int(line.split()[1])

torch.manual_seed(0)
start = time.perf_counter()
network = shapes_of(LLaDAModelLM, LLaDAConfig(n_layers=2, mlp_hidden_size=12288)).bfloat16().to_empty(device="cpu")
some = (0.02 * torch.randn(2**20 + 1)).bfloat16()  # repeated: 1.5 G normal numbers of their own take half a minute
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


def test_one_lora_step_with_the_true_vocabulary_stays_within_6_gb(tmp_path):
    need_package("peft")
    if (available() or 0) < 8 * GIB:
        pytest.skip("takes 8 GB of free memory, read from /proc/meminfo")
    (tmp_path / "step.py").write_text(STEP)
    done = command.run(script=tmp_path / "step.py")
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["peak"] < 6e9 / 1024, seen
    assert 1.46e9 < seen["base"] < 1.48e9 and seen["base_types"] == ["torch.bfloat16"]
    assert seen["masked"] > 20
    assert 8 < seen["loss"] < 16  # weights that know nothing: about log V = 11.7 a token
    assert len(seen["trained"]) == 2 * 7 * 2 and all("lora" in name for name in seen["trained"])
    assert seen["base_grads"] == 0
    assert seen["norm"] > 0 and any("lora_B" in name for name in seen["moved"])
