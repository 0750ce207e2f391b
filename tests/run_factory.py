"""Run directories for tests, with their baselines: small, complete, in the format of real runs, without a model."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from dare_bench import program
from dare_bench.analysis import baseline as baselines
from dare_bench.analysis.baseline import Baseline
from dare_bench.analysis.intervals import confidence_intervals
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import DONE_FILE, RUN_FILE, file_date, write_results, write_samples, write_traces
from dare_bench.runs.schema import Block
from dare_bench.runs.writer import atomic_write_json

DECODING = {
    "gen_length": 16,
    "steps": 16,
    "block_length": 16,
    "temperature": 0.0,
    "cfg_scale": 0.0,
    "remasking": "low_confidence",
    "early_stop": True,
    "trajectory": True,
}
CHOICES = ("a red apple", "a green pear", "seven", "none of these")


def make_run(
    root: Path,
    run_id: str = "tiny-llada-dare_sudoku-0123abcd",
    *,
    model: str = "tiny-llada",
    tasks: dict[str, float] | None = None,
    n_docs: int = 20,
    n_total: int = 200,
    limit: int | None = None,
    status: str = "complete",
    created: str = "2026-11-20T10:30:00.123456",
    gpu: str | None = None,
    decoding: dict[str, Any] | None = None,
    failures: int = 0,
    prompt: str | None = None,
    answer: str | None = None,
    fingerprint: str = "",
    prompts: str = "",
    seed: int = 0,
    done: bool = True,
    digests: bool = True,
    values: dict[str, list[float]] | None = None,
    documents: str | None = None,
    lineage: dict[str, Any] | None = None,
    content: str = "ab" * 32,
    adapter: str | None = None,
    programs: Sequence[Mapping[str, str]] = ({},),
) -> Path:
    """Write ``root/run_id`` and return it. ``tasks`` maps a task to its share of right answers; a task whose name
    starts with "choice" is scored by log-likelihood, all others are generated. ``fingerprint`` and ``prompts`` stand
    for other definitions of the tasks and other prompts; ``digests=False`` leaves out what tells an edited file.
    ``values`` gives the documents' scores one by one, by task. Runs with the same word for ``documents`` have the same
    prompts and targets, as far as their numbers of documents go. ``lineage``, ``content`` and ``adapter`` (hashes) are
    the checkpoint's. ``programs``: who answered, each told by how its parts differ from those of the running one."""
    tasks = {"dare_sudoku": 0.9} if tasks is None else tasks
    if values is not None:
        tasks, n_docs = dict.fromkeys(values, 0.0), max(map(len, values.values())) + failures
    settings = {**DECODING, **(decoding or {})}
    folder = Path(root) / run_id
    date = file_date(datetime.fromisoformat(created))
    rng = random.Random(f"{run_id}{seed}")
    results: dict[str, Any] = {k: {} for k in ("results", "configs", "versions", "n-shot", "higher_is_better")}
    results |= {"group_subtasks": {task: [] for task in tasks}, "n-samples": {}, "git_hash": None, "date": 0.0}
    blocks: dict[str, Any] = {}
    samples: dict[str, list[dict[str, Any]]] = {}
    for task, share in tasks.items():
        scored = task.startswith("choice")
        right: list[float] = [i < round(share * (n_docs - failures)) for i in range(n_docs - failures)]
        if values is not None:
            right = values[task]
        if documents is not None:
            rng = random.Random(f"{documents}{task}")
        make = _choice_sample if scored else _generate_sample
        built = [make(task, i, ok, rng, settings, prompt, answer) for i, ok in enumerate(right)]
        samples[task] = [sample for sample, _ in built]
        sums = {"samples_sha256": write_samples(folder, date, task, samples[task])}
        if traces := [trace for _, trace in built if trace]:
            sums["traces_sha256"] = write_traces(folder, date, task, traces)
        metric = "acc" if scored else "exact_match"
        mean = sum(right) / len(right) if right else 0.0
        error = max(0.0, mean * (1 - mean) / (len(right) - 1)) ** 0.5 if len(right) > 1 else "N/A"
        results["results"][task] = {
            "alias": task, "sample_len": len(right), f"{metric},none": mean, f"{metric}_stderr,none": error,
        }  # fmt: skip
        results["versions"][task], results["n-shot"][task], results["configs"][task] = 1, 0, {"task": task}
        results["higher_is_better"][task] = {metric: True}
        results["n-samples"][task] = {"original": n_total, "effective": n_docs}
        blocks[task] = {
            "fingerprint": f"{_short(fingerprint + task)}:{_short(f'{prompts}{task}{limit}')}",
            "n_docs": n_docs, "n_total": n_total, "limit_applied": limit is not None,
            "decoding": {} if scored else settings, "likelihood": {"mc_num": 128} if scored else {},
            "tier": "E2" if scored else "E1", "requests": n_docs * (len(CHOICES) if scored else 1),
            **(sums if digests else {}),
        }  # fmt: skip
    requests = sum(block["requests"] for block in blocks.values())
    block = Block.model_validate(
        {
            "status": status, "run_id": run_id, "created": created,
            "model": {"name": model, "family": "llada", "content_hash": f"sha256:{content}", "dtype": "float32",
                      "parameters": 861_000, "lineage": lineage,
                      **({"adapter": "adapter", "adapter_hash": f"sha256:{adapter}"} if adapter else {})},
            "harness": {"name": "lm-eval", "version": "0.4.13"},
            "tasks": blocks, "seeds": (0, 1234, 1234, 1234), "limit": limit,
            "command": f"dare-bench eval --model {model} --tasks {','.join(tasks)}",
            "environment": {"python": "3.11.7", "torch": "2.13.0", "dare_bench": "0.1.0", "cpu": "Test CPU, 2 cores",
                            "gpu": gpu, "platform": "Linux"},
            "decoding_requested": decoding or {},
            "programs": [{"parts": {**program.code(), "device": gpu or "cpu", **parts}, "requests": requests}
                         for parts in programs],
            "cost": {"requests": requests, "nfe": requests * 12, "forwards": requests * 4, "tokens": requests * 16,
                     "tokens_to_eos": requests * 11, "decoded_tokens": requests * 14, "seconds": 12.5,
                     "generate_seconds": 12.5, "tokens_per_s": requests * 11 / 12.5,
                     "tpf": 11 / 12, "occupancy": 0.93, "peak_memory_mb": 412.0},
            "ci": confidence_intervals(results, samples),
            "failures": [{"task": task, "doc_id": n_docs - 1 - i, "error": "the prompt is too long: 9000 tokens"}
                         for task in tasks for i in range(failures)],
            "notes": ["sampler: llada, low_confidence"],
        }
    )  # fmt: skip
    write_results(folder, date, results, block)
    atomic_write_json(folder / RUN_FILE, {"run_id": run_id, "date": created, "spec": {"model": model}})
    if done:
        atomic_write_json(folder / DONE_FILE, {"date": created})
    return folder


def alter(folder: Path, *, spec: Any = None, results: Any = None, **changes: Any) -> None:
    """Change the block of a run's results: ``model__dtype="bfloat16"`` sets ``model.dtype``. ``spec`` adds to what
    run.json says was asked, ``results`` to lm-eval's keys."""
    about = json.loads((folder / "run.json").read_bytes())
    about["spec"] |= spec or {}
    (folder / "run.json").write_text(json.dumps(about))
    file = next(folder.glob("results_*.json"))
    whole = json.loads(file.read_bytes()) | (results or {})
    for name, value in changes.items():
        part, _, inner = name.partition("__")
        if inner:
            whole["dare_bench"][part][inner] = value
        else:
            whole["dare_bench"][part] = value
    file.write_text(json.dumps(whole))


def raise_scores(folder: Path) -> None:
    """Edit a run's results as a cheat would: every score is 0.99, and its interval fits."""
    (file,) = folder.glob("results_*.json")
    results = json.loads(file.read_text())
    for task, row in results["results"].items():
        for name in [name for name in row if "," in name and "stderr" not in name]:
            row[name] = 0.99
            results["dare_bench"]["ci"][task][name] |= {"lo": 0.98, "hi": 1.0}
    file.write_text(json.dumps(results))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hashes(text: str) -> dict[str, str]:
    names = ("doc_hash", "prompt_hash", "target_hash")
    return {name: hashlib.sha256((name + text).encode()).hexdigest() for name in names}


def _generate_sample(
    task: str, i: int, ok: float, rng: random.Random, settings: dict[str, Any], prompt: str | None, answer: str | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    target = "".join(rng.choice("1234") for _ in range(8))
    output = answer if answer is not None else (target if ok else target[::-1] + "?")
    length = settings["gen_length"]
    pieces = [*(output[:1], output[1:3], *output[3:])][:length]
    pieces += ["<|endoftext|>"] * (length - len(pieces))
    order = list(range(length))
    rng.shuffle(order)
    key = f"{task}/{i}/0/0/{rng.randrange(16**8):08x}"
    events = [[step, "set", at, rng.randrange(500), round(rng.uniform(0.4, 1), 4)] for step, at in enumerate(order)]
    ask = prompt if prompt is not None else f"Question {i}: which digits?\nAnswer:"
    sample = {
        "doc_id": i, "doc": {"question": ask}, "target": target, "filter": "none", "metrics": ["exact_match"],
        "arguments": [(ask, {"until": ["\n\n"], "max_gen_toks": length})], "resps": [[output]],
        "filtered_resps": [output],
        "exact_match": float(ok), **_hashes(key),
        "dare_bench": [{"key": key, "kind": "generate", "nfe": 12, "reference_nfe": length, "tokens": length,
                        "tokens_to_eos": 9, "decoded_tokens": length, "finish_reason": "eos", "seconds": 0.05,
                        "tokens_per_s": 9 / 0.05, "tpf": 9 / 12, "seed": rng.getrandbits(62),
                        "tier": "E1", "near_tie": False, "residual_masks": 0, "trace_ref": key}],
    }  # fmt: skip
    return sample, {
        "key": key, "doc_id": i, "repeat": 0, "prompt_tokens": 9, "pieces": pieces, "events": events,
    }  # fmt: skip


def _choice_sample(
    task: str, i: int, ok: float, rng: random.Random, settings: dict[str, Any], prompt: str | None, answer: str | None
) -> tuple[dict[str, Any], None]:
    gold = rng.randrange(len(CHOICES))
    best = gold if ok else (gold + 1) % len(CHOICES)
    values = [-1.5 if at == best else -rng.uniform(4, 9) for at in range(len(CHOICES))]
    ask = prompt if prompt is not None else f"Statement {i} goes on with"
    sample = {
        "doc_id": i, "doc": {"ctx": ask, "label": gold}, "target": gold, "filter": "none", "metrics": ["acc"],
        "arguments": [(ask, f" {choice}") for choice in CHOICES],
        "resps": [[(value, False)] for value in values], "filtered_resps": [(value, False) for value in values],
        "acc": float(ok), **_hashes(f"{task}{i}"),
        "dare_bench": [{"key": f"{task}/{i}/{at}/0/{rng.randrange(16**8):08x}", "kind": "score", "value": value,
                        "stderr": 0.05, "is_greedy": False, "nfe": 128, "estimator": "reference", "draws": 128,
                        "seconds": 0.1, "seed": 7, "tier": "E2"} for at, value in enumerate(values)],
    }  # fmt: skip
    return sample, None


TASK = "dare_sudoku"


def made(folder: Path, **options: Any) -> Baseline:
    return baselines.of_run(Run(make_run(folder, **options)))


def changed(one: Baseline, change: Callable[[dict[str, Any]], None]) -> Baseline:
    """The baseline with its record changed."""
    record = one.model_dump(mode="json")
    change(record)
    return Baseline.model_validate(record)
