"""The settings of a training: one validated record, from flags, a YAML file (``-C train.yaml``) or Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dare_bench.config import one_line
from dare_bench.errors import UsageError, suggestion, unknown
from dare_bench.types import Dtype

DEFAULTS: Mapping[str, Any] = {
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "lora_r": 32,
    "lora_alpha": 16.0,
}
"""Settings of the optimizer and of an adapter where neither the user nor the method gives a value."""
Schedule = Literal[
    "linear", "cosine", "cosine_with_min_lr", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt",
]  # fmt: skip
"""Schedules of transformers that need no further settings, or ``min_lr_rate`` alone."""
WITH_FLOOR = "cosine_with_min_lr"
"""The schedule that has a ``min_lr_rate``."""
MIN_LR_RATE = 0.1
"""Its default, which is that of the published recipe of coupled-GRPO."""

BEST = (
    "metric_for_best_model", "greater_is_better", "load_best_model_at_end", "early_stopping_patience",
    "early_stopping_threshold",
)  # fmt: skip
"""Settings of the best checkpoint, by transformers' names."""
TRACKERS = {"azure_ml": "azureml", "flyte": "flytekit"} | {
    name: name
    for name in (
        "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "kubeflow", "mlflow", "neptune", "swanlab",
        "tensorboard", "trackio", "wandb",
    )
}  # fmt: skip
"""The trackers that transformers knows, and the package of each."""
MAX_STEPS, MAX_EPOCHS = 10**9, 1e6
"""Maximum number of optimizer steps, and of passes over the data, that a setting can ask for."""


class TrainSpec(BaseModel):
    """One training. Settings that transformers' TrainingArguments has keep its names and meanings. ``options`` are the
    settings of the method by name (``dare-bench train METHOD --help`` lists them); the defaults depend on the model's
    family."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    model: str = Field(description="Checkpoint to start from: a folder, a hub id or a bundled name.")
    adapter: str | None = Field(
        None, description="LoRA folder to continue training (with --peft lora; it determines rank and targets)."
    )
    data: str | None = Field(
        None, description="Training data: a JSONL, JSON, CSV or parquet file, a folder, a glob pattern or a hub id."
    )
    task: str | None = Field(
        None, description="Training data: the training split of a task of dare-bench (dare_sudoku, ...)."
    )
    output_path: str = Field(description="Output folder of the trained checkpoint; the same command resumes in it.")

    validation_data: str | None = Field(
        None, description="Rows for a validation loss, as --data (of a folder or hub id, the split validation)."
    )
    split: str = Field("train", description="Split of a hub data set.")
    rows: int | None = Field(None, ge=1, description="First N rows of the data.")
    max_length: int | None = Field(
        None, ge=2, description="Maximum number of tokens of a row (default: the model's context length)."
    )
    overlong: Literal["error", "drop", "truncate"] = Field(
        "error", description="Rows longer than max_length: stop with an error, drop the row, or truncate its answer."
    )

    family: str | None = Field(None, description="Family, if config.json does not identify it.")
    model_args: dict[str, Any] = Field(default_factory=dict, description="k=v,k=v for loading the model.")
    device: str | None = Field(None, description="cpu, cuda, cuda:1, ... (default: CUDA if available).")
    dtype: Dtype | None = Field(
        None, description="Dtype of the weights (default: float32; the checkpoint's for a LoRA base on a GPU)."
    )

    peft: Literal["lora"] | None = Field(None, description="Train an adapter instead of the weights.")
    quantize: Literal["int8", "int4"] | None = Field(
        None, description="Hold the frozen base of an adapter in int8 or int4 (QLoRA; needs torchao)."
    )
    lora_r: int | None = Field(None, ge=1, le=8192, description="Rank of the adapter.")
    lora_alpha: float | None = Field(None, gt=0, description="The adapter's update is scaled by alpha / r.")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout before the adapter.")
    lora_targets: tuple[str, ...] = Field(
        ("attention", "mlp"),
        description="Groups (attention, mlp, router, experts, head) or module names, separated by commas.",
    )

    max_steps: int | None = Field(
        None,
        ge=1,
        le=MAX_STEPS,
        description="Number of optimizer steps; overrides num_train_epochs. A larger number extends a training with a "
        "constant learning rate.",
    )
    num_train_epochs: float = Field(3.0, gt=0, le=MAX_EPOCHS, description="Passes over the data.")
    per_device_train_batch_size: int | None = Field(
        None,
        ge=1,
        description="Rows, pairs or completions per forward pass and device (default: 8; of a method with rollouts, "
        "num_generations).",
    )
    gradient_accumulation_steps: int = Field(1, ge=1, description="Forward passes per optimizer step.")
    micro_batch_size: int | None = Field(
        None, ge=1, description="Maximum masked copies per forward pass; a step with more takes more passes."
    )
    learning_rate: float | None = Field(None, gt=0, description="Peak learning rate (default: the method's).")
    lr_scheduler_type: Schedule | None = Field(None, description="Learning rate schedule, of transformers.")
    min_lr_rate: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Learning rate at the end of cosine_with_min_lr, as a fraction of the peak (default: 0.1).",
    )
    warmup_steps: float | None = Field(
        None, ge=0, description="Number of warm-up steps; below 1, a fraction of all steps."
    )
    weight_decay: float | None = Field(None, ge=0, description="AdamW's weight decay.")
    adam_beta1: float | None = Field(None, ge=0, lt=1, description="AdamW's beta1.")
    adam_beta2: float | None = Field(None, ge=0, lt=1, description="AdamW's beta2.")
    adam_epsilon: float | None = Field(None, gt=0, description="AdamW's epsilon.")
    max_grad_norm: float | None = Field(None, ge=0, description="Gradient clipping norm; 0 disables clipping.")
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass to save memory."
    )
    bf16: bool = Field(False, description="Compute in bfloat16 with float32 weights.")
    fsdp: bool = Field(False, description="Shard the model over the processes (FSDP2).")
    sequence_parallel_size: int = Field(
        1, ge=1, description="Processes that compute the same rows together, each a part of their tokens."
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of noise, row order, new adapters and generated rows.")

    logging_steps: int = Field(10, ge=1, description="Log every N steps.")
    report_to: tuple[str, ...] = Field(
        ("tensorboard",),
        description="Trackers, which must be installed: tensorboard (the default, used if installed), wandb, trackio; "
        "or none.",
    )
    run_name: str | None = Field(None, description="Name of the training in trackers that have names (wandb, trackio).")
    save_steps: int = Field(500, ge=1, description="Save a checkpoint every N steps.")
    save_total_limit: int | None = Field(None, ge=1, description="Keep the last N checkpoint-*/ (default: all).")

    eval_every: int | None = Field(
        None, ge=1, description="Evaluate and save every N steps; the final checkpoint is always evaluated."
    )
    metric_for_best_model: str | None = Field(
        None,
        description="Metric of the best checkpoint: loss (of the validation data) or TASK/METRIC, at every eval_every "
        "(default: loss, with validation data and load_best_model_at_end or early_stopping_patience).",
    )
    greater_is_better: bool | None = Field(
        None, description="Is a greater metric better (default: as its task declares; of losses, no)."
    )
    load_best_model_at_end: bool = Field(False, description="Output the best checkpoint instead of the last one.")
    early_stopping_patience: int | None = Field(
        None, ge=1, description="Stop after so many evaluations in a row that do not improve metric_for_best_model."
    )
    early_stopping_threshold: float = Field(0.0, ge=0, description="Difference that a better metric has to exceed.")
    eval_on_start: bool = Field(False, description="Also evaluate the starting checkpoint.")
    eval: dict[str, Any] = Field(
        default_factory=dict, description="What is evaluated: fields of an evaluation (tasks, limit, gen_kwargs, ...)."
    )

    options: dict[str, Any] = Field(default_factory=dict)

    def with_defaults(self, method: Any) -> TrainSpec:
        """With a value for every setting that has a default: the method's, else that of :data:`DEFAULTS`. ``method``:
        has ``training_defaults``, ``learning_rate``, ``lora_learning_rate`` and ``default_batch``. Raises UsageError:
        ``min_lr_rate`` is given for a schedule that has none."""
        rate = method.lora_learning_rate if self.peft else method.learning_rate
        defaults = {**DEFAULTS, "learning_rate": rate}
        defaults |= {name: v for name, v in method.training_defaults.items() if self.peft or name[:5] != "lora_"}
        update = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        schedule = update.get("lr_scheduler_type", self.lr_scheduler_type)
        if schedule == WITH_FLOOR and self.min_lr_rate is None:
            update["min_lr_rate"] = MIN_LR_RATE
        elif schedule != WITH_FLOOR and self.min_lr_rate is not None:
            raise UsageError(
                f"min_lr_rate={self.min_lr_rate:g} belongs to lr_scheduler_type={WITH_FLOOR}, and the schedule is "
                f"{schedule}; omit it, or give that schedule"
            )
        if self.per_device_train_batch_size is None:
            update["per_device_train_batch_size"] = method.default_batch(self.options)
        return self.model_copy(update=update)

    @property
    def rows_per_forward(self) -> int:
        """``per_device_train_batch_size``; 8 if neither the user nor the method has set it."""
        return self.per_device_train_batch_size or 8

    @property
    def lora(self) -> tuple[int, float, float, tuple[str, ...]]:
        """Rank, alpha, dropout and targets of an adapter; :data:`DEFAULTS` if neither the user nor the method has set
        them."""
        rank, alpha = self.lora_r or DEFAULTS["lora_r"], self.lora_alpha or DEFAULTS["lora_alpha"]
        return rank, alpha, self.lora_dropout, self.lora_targets

    def steps(self, rows: int, batch: int) -> int:
        """Number of optimizer steps over ``rows`` rows, ``batch`` rows in each step."""
        return optimizer_steps(self.max_steps, self.num_train_epochs, rows, batch)

    @property
    def best_metric(self) -> str | None:
        """The name of ``metric_for_best_model`` in the log."""
        name = self.metric_for_best_model
        return None if name is None else f"eval_{name.removeprefix('eval_')}"

    @property
    def is_greater_better(self) -> bool:
        """``greater_is_better``; until it is known, by the name of the metric."""
        given = self.greater_is_better
        return not str(self.metric_for_best_model).endswith("loss") if given is None else given

    @model_validator(mode="before")
    @classmethod
    def _best(cls, values: Any) -> Any:
        """The defaults that the best checkpoint has where one is wanted."""
        given = dict(values)
        wanted = given.get("load_best_model_at_end") or given.get("early_stopping_patience") is not None
        if wanted and given.get("validation_data") and given.get("metric_for_best_model") is None:
            given["metric_for_best_model"] = "loss"
        return given

    @field_validator("lora_targets", "report_to", mode="before", json_schema_input_type=str | Sequence[str])
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> TrainSpec:
        if (self.data is None) == (self.task is None):
            given = "both are given" if self.data is not None else "neither is given"
            raise ValueError(f"data and task are the sources of rows, and {given}; give one: --data FILE, --task NAME")
        if self.eval_every is not None and not self.eval and self.validation_data is None:
            raise ValueError("eval_every needs something to evaluate; give eval_tasks, eval_suite or validation_data")
        wanted = [name for name in BEST if getattr(self, name) != type(self).model_fields[name].default]
        if wanted and self.metric_for_best_model is None:
            raise ValueError(f"{wanted[0]} needs a metric; give metric_for_best_model or validation_data")
        if wanted and self.eval_every is None:
            raise ValueError(f"{wanted[-1]} needs evaluations during the training; give eval_every")
        for name, value in self:
            default = DEFAULTS.get(name, type(self).model_fields[name].default)
            if self.peft is None and name.startswith("lora_") and value not in (None, default):
                raise ValueError(f"{name}={value} belongs to an adapter; give peft='lora' too, or omit it")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name}={value} must be finite")
        return self


def optimizer_steps(max_steps: int | None, num_train_epochs: float, rows: int, batch: int) -> int:
    """Number of optimizer steps over ``rows`` rows, ``batch`` rows in each step."""
    return max_steps or max(1, math.ceil(num_train_epochs * rows / batch))


def train_spec(**fields: Any) -> TrainSpec:
    """A TrainSpec from plain values. Raises UsageError: an unknown field, or an invalid value."""
    unknown = [name for name in fields if name not in TrainSpec.model_fields]
    if unknown:
        near = suggestion(unknown[0], TrainSpec.model_fields)
        raise UsageError(f"unknown training setting {unknown[0]!r}{near}")
    try:
        return TrainSpec(**fields)
    except ValidationError as error:
        raise UsageError(one_line(error, "the training")) from error


def check_trackers(requested: Sequence[str]) -> list[str]:
    """The requested trackers that are installed; raises UsageError for an unknown one, and for one that is neither
    installed nor the default."""
    installed = [name for name, package in TRACKERS.items() if find_spec(package) is not None]
    default = TrainSpec.model_fields["report_to"].default
    for name in requested:
        if name not in TRACKERS and name != "none":
            raise unknown("tracker", name, [*TRACKERS, "none"])
        if name != "none" and name not in installed and tuple(requested) != default:
            raise UsageError(
                f"report_to={','.join(requested)}: {name} is not installed; pip install {name}, or leave it out "
                f"(installed: {', '.join(sorted(installed)) or 'none'})"
            )
    return [name for name in requested if name in installed]
