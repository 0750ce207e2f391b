"""The keywords of Python calls, for editors and type checkers: those of all families and methods together.

``make keywords`` writes this file from ``RunSpec``, ``OpeningSettings``, ``TrainSpec`` and the settings of families
and methods, where each is described. A plugin's own family or method may have more: ``generate(..., **fields)`` with
``fields: dict[str, Any]`` passes them, and so do ``evaluate(decoding=...)`` and ``train(options=...)``.
"""
# fmt: off
# ruff: noqa: E501, UP013

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

OpeningKeywords = TypedDict("OpeningKeywords", {
    "adapter": str | Path | None, "family": str | None, "device": str | None, "dtype": Any,
    "attention": Literal["auto", "sdpa", "padded", "flex", "varlen"] | None, "compile": bool | None,
    "quantize": Literal["int8", "int4"] | None, "mask_id": int | None, "eos_id": int | Sequence[int] | None,
    "eot_id": int | None, "pad_id": int | None, "max_memory": Mapping[int | str, int | str] | None,
}, total=False)

RunKeywords = TypedDict("RunKeywords", {
    "adapter": str | Path | None, "family": str | None, "device": str | None,
    "dtype": Literal["float32", "bfloat16", "float16", "float64", "auto"] | None,
    "attention": Literal["auto", "sdpa", "padded", "flex", "varlen"] | None, "compile": bool | None,
    "quantize": Literal["int8", "int4"] | None, "model_args": Mapping[str, Any], "engine": str,
    "engine_url": str | None, "engine_args": Mapping[str, Any], "harness": str, "tasks": str | Sequence[str],
    "num_fewshot": int | None, "decoding": Mapping[str, Any], "likelihood": Mapping[str, Any],
    "limit": int | float | None, "until_halfwidth": float | None, "samples": Mapping[str, Sequence[int]] | None,
    "seeds": int | str | Sequence[int], "repeats": int, "apply_chat_template": bool | str, "fewshot_as_multiturn": bool,
    "system_instruction": str | None, "include_path": str | Sequence[str], "data_dir": str | None,
    "max_rows": int | None, "devices": int, "executor": str | None, "ray_address": str | None, "output_path": str,
    "fresh": bool, "log_samples": bool, "unsafe_no_sandbox": bool, "recipe": str | None, "part_of": str | None,
}, total=False)

TrainKeywords = TypedDict("TrainKeywords", {
    "method": str, "model": str, "adapter": str | None, "data": str | Iterable[Mapping[str, Any]] | None,
    "task": str | None, "output_path": str, "validation_data": str | None, "split": str, "rows": int | None,
    "max_length": int | None, "overlong": Literal["error", "drop", "truncate"], "family": str | None,
    "model_args": Mapping[str, Any], "device": str | None,
    "dtype": Literal["float32", "bfloat16", "float16", "float64", "auto"] | None, "peft": Literal["lora"] | None,
    "quantize": Literal["int8", "int4"] | None, "lora_r": int | None, "lora_alpha": float | None, "lora_dropout": float,
    "lora_targets": str | Sequence[str], "max_steps": int | None, "num_train_epochs": float,
    "per_device_train_batch_size": int | None, "gradient_accumulation_steps": int, "micro_batch_size": int | None,
    "learning_rate": float | None, "lr_scheduler_type": Literal["linear", "cosine", "cosine_with_min_lr",
    "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"] | None,
    "min_lr_rate": float | None, "warmup_steps": float | None, "weight_decay": float | None, "adam_beta1": float | None,
    "adam_beta2": float | None, "adam_epsilon": float | None, "max_grad_norm": float | None,
    "gradient_checkpointing": bool, "bf16": bool, "fsdp": bool, "sequence_parallel_size": int, "seed": int,
    "logging_steps": int, "report_to": str | Sequence[str], "run_name": str | None, "save_steps": int,
    "save_total_limit": int | None, "eval_every": int | None, "metric_for_best_model": str | None,
    "greater_is_better": bool | None, "load_best_model_at_end": bool, "early_stopping_patience": int | None,
    "early_stopping_threshold": float, "eval_on_start": bool, "eval": Mapping[str, Any], "options": Mapping[str, Any],
    "variant": Literal["paper", "dare"], "num_generations": int, "num_iterations": int,
    "max_completion_length": int | None, "temperature": float, "rollout": Mapping[str, Any] | str,
    "rollout_engine": str | None, "rollout_engine_url": str | None, "rollout_engine_args": Mapping[str, Any] | str,
    "reward": Mapping[str, Any] | str | Callable[..., Any] | Sequence[Callable[..., Any] | str],
    "reward_weights": Mapping[str, float] | Sequence[float] | str, "reward_timeout": float, "log_completions": int,
    "advantage": Literal["standardized", "mean", "leave_one_out"], "dynamic_sampling": int | None, "epsilon": float,
    "epsilon_high": float | None, "dual_clip": float | None, "beta": float,
    "aggregation": Literal["sequence", "token", "transition", "sequence_sum", "constant_length"],
    "importance_cap": float | None, "reference": str | None, "sync_ref_model": bool, "ref_model_sync_steps": int,
    "ref_model_mixup_alpha": float, "num_mc": int, "score_after_eos": bool, "level": tuple[float, float] | str,
    "normalized": bool, "p_mask_prompt": float,
    "padding": Literal["drawn", "longest", "eos_supervised", "masked_out"] | None, "canvas_length": int | None,
    "eps": float, "block_length": int | None, "draws": int,
    "noise": Literal["uniform", "even", "counts", "coupled", "blocks", "band"], "shared_noise": bool,
    "fresh_noise": bool, "label_smoothing": float, "tree_branch_factor": int, "tree_contraction_factor": int,
    "distillation": float, "distillation_growth": float, "distillation_temperature": float,
    "distillation_cooling": float, "distillation_steps": int | None, "sample_train_steps": int,
    "prompt_filter": Literal["over_denoising"] | None, "confidence_weights": bool, "band": tuple[float, float] | str,
    "weight": Literal["elbo", "plain", "cart"], "cart_q": float, "normalize": Literal["row", "token", "mask"],
    "negative": Literal["mix", "eubo", "elbo", "zero"], "eubo_beta": float, "mix_weight": float,
    "mask_block_length": int,
}, total=False)

DecodingKeywords = TypedDict("DecodingKeywords", {
    "gen_length": int | None, "temperature": float | None, "early_stop": bool | None,
    "text_after_eos": Literal["cut", "keep"] | None, "stop": str | Sequence[str] | None,
    "rng": Literal["ours", "reference"] | None, "trajectory": bool | None, "predictions": bool | None,
    "near_tie": bool | None, "mask_id": int | None, "eos_id": int | Sequence[int] | None, "eot_id": int | None,
    "strategy": Any, "draft_steps": int | None, "max_length": int | None, "steps": int | None,
    "block_length": int | None, "cfg_scale": float | None, "cfg_keep_tokens": int | Sequence[int] | None,
    "remasking": Literal["low_confidence", "random"] | None, "right_shift_logits": bool | None,
    "steps_per_block": int | None, "cache": Literal["exact", "none", "prefix", "dual", "sub_block"] | None,
    "suppress_tokens": int | Sequence[int] | None, "begin_suppress_tokens": int | Sequence[int] | None,
    "top_k": int | None, "top_p": float | None, "repetition_penalty": float | None, "t_min": float | None,
    "max_denoising_steps": int | None, "entropy_bound": float | None, "stability_threshold": int | None,
    "confidence_threshold": float | None,
    "alg": Literal["origin", "maskgit_plus", "topk_margin", "entropy", "confidence_threshold", "p2"] | None,
    "alg_temp": float | None, "eps": float | None, "threshold": float | None, "small_block_size": int | None,
    "logits_eos_inf": bool | None, "confidence_eos_eot_inf": bool | None, "factor": float | None,
    "confidence_dtype": Literal["float32", "float64"] | None, "variable_length": bool | None,
    "end_think_token_ids": Sequence[int] | None, "end_think_logit_boost": float | None,
    "end_think_boost_power": float | None, "minimal_topk": int | None, "eos_early_stop": bool | None,
    "editing": bool | None, "editing_threshold": float | None, "max_post_steps": int | None,
    "num_to_transfer": int | None, "max_steps_per_block": int | None, "delete_token_id": int | None,
    "split_token_id": int | None, "denoising_steps": int | None, "remasking_strategy": Literal["sequential",
    "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"] | None, "eb_threshold": float | None,
    "stopping_criteria_idx": int | Sequence[int] | None, "max_new_tokens": int | None, "block_size": int | None,
    "canvas_length": int | None, "t_max": float | None,
}, total=False)

LikelihoodKeywords = TypedDict("LikelihoodKeywords", {
    "mc_num": int | None, "batch_size": int | None, "level": float | None, "block_length": int | None,
    "cfg_scale": float | None, "nll_type": Literal["mc", "ar_ftb", "ar_btf", "blocks", "first_token"] | None,
    "log_type": Literal["ftb", "btf", "union"] | None, "sampling_eps": float | None,
    "classifier_free_guidance": float | None, "llh": Literal["mc", "confidence"] | None, "padd_eos": bool | None,
}, total=False)

DECODING_LIMITS: Mapping[str, Mapping[str, Any]] = {
    "gen_length": {"ge": 1, "le": 65536},
    "temperature": {"ge": 0},
    "draft_steps": {"ge": 0},
    "max_length": {"ge": 1, "le": 65536},
    "steps": {"ge": 1, "le": 65536},
    "block_length": {"ge": 1, "le": 65536},
    "cfg_scale": {"ge": 0},
    "steps_per_block": {"ge": 1, "le": 65536},
    "max_new_tokens": {"ge": 1, "le": 65536},
    "block_size": {"ge": 1, "le": 65536},
    "top_k": {"ge": 0},
    "top_p": {"gt": 0, "le": 1},
    "repetition_penalty": {"gt": 0},
    "t_min": {"ge": 0},
    "max_denoising_steps": {"ge": 1, "le": 65536},
    "entropy_bound": {"gt": 0},
    "stability_threshold": {"ge": 0},
    "canvas_length": {"ge": 1, "le": 65536},
    "t_max": {"ge": 0},
    "alg_temp": {"ge": 0},
    "eps": {"gt": 0, "lt": 1},
    "threshold": {"ge": 0, "le": 1},
    "small_block_size": {"ge": 1, "le": 65536},
    "factor": {"gt": 0},
    "end_think_logit_boost": {"ge": 0},
    "end_think_boost_power": {"ge": 0},
    "minimal_topk": {"ge": 1, "le": 65536},
    "editing_threshold": {"ge": 0, "le": 1},
    "max_post_steps": {"ge": 0},
    "num_to_transfer": {"ge": 1, "le": 65536},
    "max_steps_per_block": {"ge": 2, "le": 65536},
    "delete_token_id": {"ge": 0},
    "split_token_id": {"ge": 0},
    "denoising_steps": {"ge": 1, "le": 65536},
    "eb_threshold": {"ge": 0},
}
"""Bounds of fields, on which all families that have the field agree."""

DECODING_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "a2d_bd3lm": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'max_length': None, 'block_length': 32, 'cfg_scale': 0.0, 'cfg_keep_tokens': (), 'remasking': 'low_confidence', 'right_shift_logits': False, 'steps_per_block': None, 'cache': 'exact'},
    "a2d_mdlm": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'max_length': None, 'cfg_scale': 0.0, 'cfg_keep_tokens': (), 'remasking': 'low_confidence', 'right_shift_logits': False, 'suppress_tokens': (), 'begin_suppress_tokens': ()},
    "causal": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'top_k': 0, 'top_p': 1.0, 'repetition_penalty': 1.0},
    "diffusion_gemma": {'gen_length': 256, 'temperature': 0.8, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'max_denoising_steps': 48, 'entropy_bound': 0.1, 'stability_threshold': 1, 'confidence_threshold': 0.005, 'cache': 'exact'},
    "dream": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'alg': 'entropy', 'alg_temp': None, 'eps': 0.001, 'top_p': None, 'top_k': None, 'cache': 'none'},
    "fast_dllm_v2": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'threshold': 0.9, 'top_p': 0.95, 'cache': 'exact'},
    "illada": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'cfg_scale': 0.0, 'remasking': 'low_confidence', 'logits_eos_inf': False, 'confidence_eos_eot_inf': False, 'threshold': None, 'factor': None, 'cache': 'none', 'variable_length': False, 'end_think_token_ids': None, 'end_think_logit_boost': 0.0, 'end_think_boost_power': 2.0},
    "llada": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'cfg_scale': 0.0, 'remasking': 'low_confidence', 'logits_eos_inf': False, 'confidence_eos_eot_inf': False, 'threshold': None, 'factor': None, 'cache': 'none'},
    "llada2": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'threshold': 0.95, 'minimal_topk': 1, 'top_p': None, 'top_k': None, 'eos_early_stop': False, 'editing': None, 'editing_threshold': None, 'max_post_steps': None, 'num_to_transfer': None, 'cache': 'exact'},
    "llada2.1": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'threshold': 0.95, 'minimal_topk': 1, 'top_p': None, 'top_k': None, 'eos_early_stop': False, 'editing': None, 'editing_threshold': None, 'max_post_steps': None, 'num_to_transfer': None, 'cache': 'exact'},
    "llada2.2": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'threshold': 0.5, 'editing_threshold': 0.0, 'max_post_steps': 16, 'max_steps_per_block': 1000, 'delete_token_id': None, 'split_token_id': None, 'top_p': None, 'top_k': None, 'eos_early_stop': False, 'cache': 'exact'},
    "llada_moe": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'cfg_scale': 0.0, 'remasking': 'low_confidence', 'logits_eos_inf': False, 'confidence_eos_eot_inf': False, 'threshold': None, 'factor': None, 'cache': 'none'},
    "mdlm": {'gen_length': 128, 'temperature': 1.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'steps': None, 'block_length': None},
    "nemotron_diffusion": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'threshold': None, 'cache': 'exact'},
    "open_dcoder": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'alg': 'p2', 'alg_temp': None, 'eps': 0.001, 'top_p': None, 'top_k': None},
    "sdar": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'remasking_strategy': 'low_confidence_dynamic', 'confidence_threshold': 0.85, 'top_k': 0, 'top_p': 1.0, 'stopping_criteria_idx': None, 'cache': 'exact'},
    "stable_diffcoder": {'gen_length': 128, 'temperature': 0.0, 'early_stop': None, 'text_after_eos': 'cut', 'stop': (), 'rng': 'ours', 'strategy': None, 'draft_steps': 0, 'remasking': 'low_confidence', 'threshold': None, 'cache': 'exact'},
}
"""Defaults that do not depend on the checkpoint, by family."""

DECODING_FOLLOWS: Mapping[str, Mapping[str, str]] = {
    "a2d_bd3lm": {'steps': 'gen_length'},
    "a2d_mdlm": {'steps': 'gen_length', 'block_length': 'gen_length'},
    "causal": {},
    "diffusion_gemma": {},
    "dream": {'steps': 'gen_length'},
    "fast_dllm_v2": {},
    "illada": {'steps': 'gen_length', 'block_length': 'gen_length'},
    "llada": {'steps': 'gen_length', 'block_length': 'gen_length'},
    "llada2": {'steps': 'block_length'},
    "llada2.1": {'steps': 'block_length'},
    "llada2.2": {'steps': 'block_length'},
    "llada_moe": {'steps': 'gen_length', 'block_length': 'gen_length'},
    "mdlm": {},
    "nemotron_diffusion": {},
    "open_dcoder": {'steps': 'gen_length'},
    "sdar": {'denoising_steps': 'block_length'},
    "stable_diffcoder": {'steps': 'gen_length'},
}
"""Fields whose default is the value of another field, by family."""

ESTIMATORS = ("auto", "exact", "reference", "fast", "adaptive", "chain", "sizes", "pairs", "control")
"""Estimators of likelihoods; the last ones can be joined by +."""

STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "ascending": {'rule': 'the most confident, twice as many each step', 'exact': '', 'source': 'ASS, arXiv 2509.23924', 'fields': {'steps': None, 'rank_by': 'confidence'}, 'published': {}},
    "bernoulli": {'rule': 'random ones by a grid of times', 'exact': 'Dream', 'source': 'Dream, DreamLM/Dream generation_utils.py, origin', 'fields': {'steps': None, 'eps': 0.001}, 'published': {}},
    "block_quota": {'rule': 'the most confident, so many a step until full', 'exact': 'SDAR', 'source': 'SDAR, JetAstra/SDAR generate.py, low_confidence_static', 'fields': {'steps': None, 'rank_by': 'confidence'}, 'published': {}},
    "carry": {'rule': 'all above a confidence; a quota is carried on', 'exact': '', 'source': 'Fast-dLLM, arXiv 2505.22618, Dream generation_utils.py, confidence_threshold', 'fields': {'steps': None, 'rank_by': 'confidence', 'threshold': None}, 'published': {}},
    "credit_decoding": {'rule': 'all above a confidence, raised by credit', 'exact': '', 'source': 'CreditDecoding, arXiv 2510.06133, inclusionAI/dInfer parallel_strategy.py CreditThresholdParallelDecoder', 'fields': {'steps': None, 'threshold': 0.9, 'credit_alpha': 0.7, 'boost_gamma': 0.2, 'decay_beta': 0.8}, 'published': {}},
    "d3llm": {'rule': 'low entropies in several open blocks', 'exact': '', 'source': 'd3LLM, arXiv 2601.07568, hao-ai-lab/d3LLM d3llm_llada_generate_util.py generate_multi_block', 'fields': {'steps': None, 'threshold': 0.5, 'block_add_threshold': 0.5, 'decoded_token_threshold': 0.5, 'early_stop': False}, 'published': {'llada': ['GSM8K', 'MATH', 'HumanEval', 'MBPP']}},
    "daedal": {'rule': 'confident ones, on a canvas that grows', 'exact': '', 'source': 'DAEDAL, arXiv 2508.00819, Li-Jinsong/DAEDAL models/LLaDA_DAEDAL.py generate', 'fields': {'steps': None, 'initial_gen_length': 64, 'high_conf_threshold': 0.9, 'low_conf_threshold': 0.1, 'expansion_factor': 8, 'eos_confidence_threshold': 0.5, 'expand_eos_confidence_threshold': 0.9, 'eos_check_tokens': 32}, 'published': {'llada': ['GSM8K', 'MATH', 'HumanEval', 'MBPP']}},
    "dynamic": {'rule': 'all above a confidence, at least a share', 'exact': 'SDAR, LLaDA2', 'source': 'SDAR, JetAstra/SDAR generate.py, low_confidence_dynamic; LLaDA2 generate', 'fields': {'steps': None, 'threshold': None}, 'published': {}},
    "eb_sampler": {'rule': 'low entropies up to a sum, in the whole answer', 'exact': '', 'source': 'EB-Sampler, arXiv 2505.24857, as in NEUIR/PC-Sampler src/generate.py generate_with_eb_sampler', 'fields': {'steps': None, 'gamma': 0.1}, 'published': {}},
    "edit": {'rule': 'all above a confidence; tokens may change', 'exact': 'LLaDA2.1', 'source': 'LLaDA2.1 generate', 'fields': {'steps': None, 'threshold': None, 'edit_threshold': None, 'max_post_steps': 16, 'min_transfer': 1}, 'published': {}},
    "entropy_bound": {'rule': 'low entropies up to a sum', 'exact': 'SDAR', 'source': "EB-Sampler, arXiv 2505.24857, as in SDAR's entropy_bounded and SGLang's EBSampling", 'fields': {'steps': None, 'bound': None}, 'published': {}},
    "eoser": {'rule': 'another strategy, with EOS held back early', 'exact': '', 'source': 'EOSER, arXiv 2509.23924', 'fields': {'steps': None, 'inner': 'quota', 'gamma_min': 0.4}, 'published': {}},
    "factor": {'rule': 'confident ones, fewer for more', 'exact': '', 'source': 'Fast-dLLM, arXiv 2505.22618, get_transfer_index_dynamic', 'fields': {'steps': None, 'rank_by': 'confidence', 'factor': None}, 'published': {}},
    "klass": {'rule': 'confident ones whose distribution is stable', 'exact': '', 'source': 'KLASS, arXiv 2511.05664, shkim0116/KLASS llada_klass.py and dream_klass.py', 'fields': {'steps': None, 'conf_threshold': 0.9, 'kl_threshold': 0.01, 'kl_history_length': 2, 'unmask_strategy': 'all'}, 'published': {'llada': ['GSM8K', 'MATH', 'HumanEval', 'MBPP'], 'dream': ['GSM8K', 'MATH', 'HumanEval', 'MBPP']}},
    "linear_quota": {'rule': 'a rounded share of the masks left', 'exact': 'dLLM', 'source': 'A2D, ZHZisZZ/dllm core/samplers/mdlm.py and bd3lm.py', 'fields': {'steps': None, 'rank_by': 'confidence'}, 'published': {}},
    "p2": {'rule': 'a path: unsure tokens are masked again', 'exact': 'Open-dCoder', 'source': 'P2, arXiv 2502.03540, as in pengzhangzhi/Open-dLLM generation_utils.py', 'fields': {'steps': None}, 'published': {}},
    "pc_sampler": {'rule': 'a quota; early places and rare tokens first', 'exact': '', 'source': 'PC-Sampler, arXiv 2508.13021, NEUIR/PC-Sampler src/generate.py generate_with_pc_sampler', 'fields': {'steps': None, 'rank_by': 'confidence', 'background': None, 'lambd': 1.0, 'alpha': 1.0}, 'published': {'llada': ['GSM8K', 'HumanEval', 'GPQA', 'MATH', 'MBPP']}},
    "prophet": {'rule': 'a quota; all at once when the answer is clear', 'exact': '', 'source': 'Prophet, arXiv 2508.19982, pixeli99/Prophet generate_earlyexit.py', 'fields': {'steps': None, 'early_exit_thresholds': {'early': 7.5, 'mid': 5.0, 'late': 2.5}, 'constraints': [], 'answer_offset': 0, 'answer_length': 5}, 'published': {'llada': ['GSM8K']}},
    "quota": {'rule': 'the most confident, so many a step', 'exact': 'LLaDA', 'source': 'LLaDA, ML-GSAI/LLaDA generate.py', 'fields': {'steps': None, 'rank_by': 'confidence'}, 'published': {}},
    "rcr": {'rule': 'a quota; unsure tokens are masked again', 'exact': '', 'source': 'RCR, MDPO, arXiv 2508.13148, autonomousvision/mdpo', 'fields': {'steps': None, 'rank_by': 'confidence'}, 'published': {}},
    "sequential": {'rule': 'the first ones from left to right', 'exact': 'SDAR', 'source': 'SDAR, JetAstra/SDAR generate.py, sequential', 'fields': {'steps': None, 'rank_by': 'confidence'}, 'published': {}},
    "threshold": {'rule': 'all above a confidence', 'exact': '', 'source': 'Fast-dLLM, arXiv 2505.22618, get_transfer_index', 'fields': {'steps': None, 'rank_by': 'confidence', 'threshold': None}, 'published': {}},
    "time_quota": {'rule': 'a share by a grid of times', 'exact': 'Dream', 'source': 'Dream, DreamLM/Dream generation_utils.py', 'fields': {'steps': None, 'rank_by': 'confidence', 'order_temperature': 0.0, 'eps': 0.001}, 'published': {}},
    "wino": {'rule': 'many drafted, doubtful ones masked again', 'exact': '', 'source': 'WINO, arXiv 2507.18578, Feng-Hong/WINO-DLLM LLaDA/decoding.py decoding_wino', 'fields': {'steps': None, 'threshold': 0.6, 'threshold_back': 0.9}, 'published': {'llada': ['GSM8K', 'MATH', 'HumanEval', 'MBPP', 'ARC']}},
}
"""What is known of each strategy."""
