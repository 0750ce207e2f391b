"""Training methods, as plugins: supervised, preference, and reinforcement learning in ``rl``; one loop trains them all.
``noised.py`` is the base of methods on noised rows of the data, ``rl/policy_gradient.py`` of those on sampled
completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if __name__ != "dare_bench.trainers":
    raise ImportError(f"import dare_bench.trainers, not {__name__}")

if TYPE_CHECKING:
    from dare_bench.registry import Registry


def register(registry: Registry) -> None:
    """The methods by name. Imports no torch."""
    for name, target, about in (
        ("sft", "sft:SFT", "supervised fine-tuning with the loss of the family's authors"),
        ("dpo", "preference:DPO", "direct preference optimization on ELBO estimates"),
        ("d1", "rl.d1:D1", "diffu-GRPO: one copy with the completion masked (d1, arXiv 2504.12216)"),
        ("coupled_grpo", "rl.coupled_grpo:CoupledGRPO", "coupled-GRPO: a mask and its complement (arXiv 2506.20639)"),
        ("cj_grpo", "rl.cj_grpo:CJGRPO", "CJ-GRPO: replay of the sampler's trajectory (arXiv 2509.23924)"),
        ("dtreerpo", "rl.dtreerpo:DTreeRPO", "d-TreeRPO: local advantages in a tree of completions (arXiv 2512.09675)"),
        ("espo", "rl.espo:ESPO", "ESPO: sequence ratios of ELBO estimates (arXiv 2512.03759)"),
        ("just_grpo", "rl.just_grpo:JustGRPO", "JustGRPO: left to right, with exact probabilities (arXiv 2601.15165)"),
        ("bgpo", "rl.bgpo:BGPO", "BGPO: a bound that is linear in many ELBO draws (arXiv 2510.11683)"),
        ("ebpo", "rl.ebpo:EBPO", "EBPO: sequence ratios of ELBOs, all blocks in one forward (arXiv 2602.08676)"),
        ("spg", "rl.spg:SPG", "SPG: bounds by the sign of the advantage (arXiv 2510.09541)"),
        ("mdpo", "rl.mdpo:MDPO", "MDPO: rewards on the answers that forwards predict (arXiv 2508.13148)"),
        (
            "vrpo",
            "preference:VRPO",
            "DPO with lower variance (LLaDA 1.5): many draws, shared with the reference policy",
        ),
    ):
        module, _, kind = target.partition(":")
        place = "rl.algorithm_options" if module.startswith("rl.") else "options"
        reads = {"sft": "examples", "preference": "pairs"}.get(module, "prompts")
        known = {"options": f"dare_bench.trainers.{place}:{kind}Options", "reads": reads}
        if reads == "prompts":
            known["refuse_replay"] = "dare_bench.trainers.rl.completions_table:refuse_not_kept"
        registry.add("trainer", name, f"dare_bench.trainers.{target}", origin=__name__, about=about, **known)
