"""The keywords of Python calls, for editors and type checkers. What they mean stands where they are read: ``RunSpec``,
``TrainSpec``, and the families' and methods' own settings. A test holds the names and values equal to those.

A plugin's own family or method may have more: ``generate(..., **fields)`` with ``fields: dict[str, Any]`` passes them,
and so do ``evaluate(decoding=...)`` and ``train(options=...)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict


class RunKeywords(TypedDict, total=False):
    """Of ``evaluate``: the fields of :class:`~dare_bench.config.RunSpec` besides the model."""

    adapter: str | None
    family: str | None
    model_args: Mapping[str, Any]
    engine: str
    engine_url: str | None
    engine_args: Mapping[str, Any]
    device: str | None
    dtype: str | None
    attention: str | None
    compile: bool | None
    quantize: Literal["int8", "int4"] | None
    harness: str
    tasks: str | Sequence[str]
    num_fewshot: int | None
    decoding: Mapping[str, Any]
    likelihood: Mapping[str, Any]
    limit: int | float | None
    samples: Mapping[str, Sequence[int]] | None
    seeds: int | str | Sequence[int]
    repeats: int
    apply_chat_template: bool | str
    fewshot_as_multiturn: bool
    system_instruction: str | None
    include_path: str | Sequence[str]
    data_dir: str | None
    max_rows: int | None
    devices: int
    executor: str | None
    ray_address: str | None
    output_path: str
    fresh: bool
    log_samples: bool
    unsafe_no_sandbox: bool
    recipe: str | None
    part_of: str | None


class MethodKeywords(TypedDict, total=False):
    """The training methods' own settings, all together; each method takes some of them."""

    padding: Literal["eos_supervised", "masked_out"] | None
    canvas_length: int | None
    max_pads: int | None
    noise: Literal["uniform", "even", "counts", "coupled", "blocks", "band"]
    draws: int
    eps: float
    band: tuple[float, float] | str
    weight: Literal["elbo", "plain", "cart"]
    cart_q: float
    normalise: Literal["row", "token", "mask"]
    block_length: int | None
    beta: float
    shared_noise: bool
    fresh_noise: bool
    reference: str | None
    label_smoothing: float
    num_generations: int
    num_iterations: int
    max_completion_length: int | None
    temperature: float
    rollout: Mapping[str, Any] | str
    rollout_engine: str | None
    rollout_engine_url: str | None
    rollout_engine_args: Mapping[str, Any] | str
    reward: Mapping[str, Any] | str | Callable[..., Any] | Sequence[Callable[..., Any] | str]
    reward_weights: Mapping[str, float] | Sequence[float] | str
    reward_timeout: float
    log_completions: int
    advantage: Literal["standardized", "mean", "leave_one_out"]
    epsilon: float
    epsilon_high: float | None
    dual_clip: float | None
    variant: Literal["paper", "dare"]
    aggregation: Literal["sequence", "token", "transition", "sequence_sum", "constant_length"]
    importance_cap: float | None
    score_after_eos: bool
    sync_ref_model: bool
    ref_model_sync_steps: int
    ref_model_mixup_alpha: float
    p_mask_prompt: float
    level: tuple[float, float] | str
    normalized: bool
    num_mc: int
    negative: Literal["mix", "eubo", "elbo", "zero"]
    eubo_beta: float
    mix_weight: float
    mask_block_length: int
    sample_train_steps: int
    confidence_weights: bool
    prompt_filter: Literal["over_denoising"] | None
    tree_branch_factor: int
    tree_contraction_factor: int
    distillation: float
    distillation_growth: float
    distillation_temperature: float
    distillation_cooling: float
    distillation_steps: int | None


class TrainKeywords(MethodKeywords, total=False):
    """Of ``train``: the fields of :class:`~dare_bench.training.spec.TrainSpec`, and the methods' own."""

    method: str
    model: str
    adapter: str | None
    data: str | Iterable[Mapping[str, Any]] | None
    task: str | None
    output_path: str
    split: str
    rows: int | None
    max_length: int | None
    overlong: Literal["error", "drop", "truncate"]
    family: str | None
    model_args: Mapping[str, Any]
    device: str | None
    dtype: str | None
    peft: Literal["lora"] | None
    lora_r: int | None
    lora_alpha: float | None
    lora_dropout: float
    lora_targets: str | Sequence[str]
    max_steps: int | None
    num_train_epochs: float
    per_device_train_batch_size: int | None
    gradient_accumulation_steps: int
    looks_per_forward: int | None
    learning_rate: float | None
    lr_scheduler_type: str
    min_lr_rate: float
    warmup_steps: float
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    max_grad_norm: float
    gradient_checkpointing: bool
    bf16: bool
    fsdp: bool
    sequence_parallel_size: int
    seed: int
    logging_steps: int
    report_to: str | Sequence[str]
    run_name: str | None
    save_steps: int
    save_total_limit: int | None
    eval_every: int | None
    eval_on_start: bool
    eval: Mapping[str, Any]
    options: Mapping[str, Any]


class DecodingKeywords(TypedDict, total=False):
    """Of ``generate``: the families' fields by their users' names, all together. None is the family's default."""

    gen_length: int | None
    max_new_tokens: int | None
    temperature: float | None
    early_stop: bool | None
    text_after_eos: Literal["cut", "keep"] | None
    stop: str | Sequence[str] | None
    rng: Literal["ours", "reference"] | None
    trajectory: bool | None
    predictions: bool | None
    near_tie: bool | None
    mask_id: int | None
    eos_id: int | Sequence[int] | None
    eot_id: int | None
    strategy: str | Mapping[str, Any] | None
    steps: int | None
    block_length: int | None
    cfg_scale: float | None
    remasking: Literal["low_confidence", "random"] | None
    logits_eos_inf: bool | None
    confidence_eos_eot_inf: bool | None
    threshold: float | None
    factor: float | None
    cache: Literal["none", "prefix", "dual", "exact", "sub_block"] | None
    confidence_dtype: Literal["float32", "float64"] | None
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy", "confidence_threshold"] | None
    alg_temp: float | None
    eps: float | None
    top_p: float | None
    top_k: int | None
    repetition_penalty: float | None
    denoising_steps: int | None
    remasking_strategy: (
        Literal["sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"] | None
    )
    confidence_threshold: float | None
    eb_threshold: float | None
    stopping_criteria_idx: Sequence[int] | None
    minimal_topk: int | None
    eos_early_stop: bool | None
    editing: bool | None
    editing_threshold: float | None
    max_post_steps: int | None
    num_to_transfer: int | None
    max_steps_per_block: int | None
    delete_token_id: int | None
    split_token_id: int | None
    small_block_size: int | None
    block_size: int | None
    max_denoising_steps: int | None
    entropy_bound: float | None
    t_min: float | None
    t_max: float | None
    stability_threshold: int | None
    canvas_length: int | None


class LikelihoodKeywords(TypedDict, total=False):
    """Of ``loglikelihood``: the families' fields by their users' names, all together. None is the family's default."""

    mc_num: int | None
    batch_size: int | None
    cfg_scale: float | None
    block_length: int | None
    nll_type: Literal["mc", "ar_ftb", "ar_btf", "blocks", "first_token"] | None
    log_type: Literal["ftb", "btf", "union"] | None
    sampling_eps: float | None
    classifier_free_guidance: float | None
