"""The example plugins of docs/, installed as a user would: a training method, a model family, a folder of tasks; and
plugins that do not work, which are named and left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command
import pytest
import torch
from require import need_package
from safetensors.torch import load_file

import dare_bench
from dare_bench.engine.environment import program_parts
from dare_bench.engine.validation import validate
from dare_bench.errors import CheckpointError
from dare_bench.leaderboards.builder import build
from dare_bench.registry import load_plugins, registry

need_package("accelerate")
DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = ("example-method", "example-family", "example-tasks")
PLUGINS = "dare-focal,dare-mine,dare-reverse"
ASKED = ("--model", "tiny-llada-base", "--task", "dare_arithmetic", "--rows", "64", "--max-steps", "3")
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 303, "max_position_embeddings": 512}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the three plugins."""
    place = tmp_path_factory.mktemp("site")
    words = ["install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(place)]
    folders = [str(DOCS / name) for name in EXAMPLES]
    subprocess.run([sys.executable, "-m", "pip", *words, *folders], check=True, timeout=120, capture_output=True)
    return place


@pytest.fixture(scope="module")
def installed(site: Path) -> dict[str, str]:
    """The environment of a process that has the plugins."""
    return {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "DARE_BENCH_PLUGINS": PLUGINS}


@pytest.fixture(scope="module")
def here(site: Path) -> Iterator[None]:
    """The plugins in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DARE_BENCH_PLUGINS", PLUGINS)
        patch.syspath_prepend(str(site))
        patch.setattr(registry(), "_entries", dict(registry()._entries))
        patch.setattr(registry(), "plugins", [])
        load_plugins(registry())
        yield


@pytest.fixture(scope="module")
def masked(here: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random checkpoint of the family, saved by transformers' own Qwen3, which has the same weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("masked")
    ids = {"eos_token_id": 299, "pad_token_id": 299, "bos_token_id": None}
    Qwen3ForCausalLM(Qwen3Config(**SIZES, **ids, rope_theta=123.0, tie_word_embeddings=True)).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    published = {"model_type": "masked-qwen3", "architectures": ["MaskedQwen3LMHeadModel"]}
    (folder / "config.json").write_text(json.dumps(config | published))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (Path(registry().get("checkpoint", "tiny-sdar").target) / name).read_text()
        (folder / name).write_text(text.replace("<|MASK|>", "<|mask|>"))
    return folder


def run(env: dict[str, str], *words: str) -> str:
    done = command.run(*words, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_method_is_listed_and_shows_its_settings(installed: dict[str, str]) -> None:
    assert "focal" in run(installed, "ls", "trainers")
    output = run({**installed, "COLUMNS": "120"}, "train", "focal", "--help")
    assert "--gamma" in output
    assert "--learning-rate" in output


def test_the_method_trains_and_without_gamma_it_is_sft(installed: dict[str, str], tmp_path: Path) -> None:
    for name, words in (("focal", ["focal"]), ("zero", ["focal", "--gamma", "0"]), ("sft", ["sft"])):
        run(installed, "train", *words, *ASKED, "-o", str(tmp_path / name))
    focal, zero, sft = (load_file(tmp_path / name / "model.safetensors") for name in ("focal", "zero", "sft"))
    assert all((zero[name] == sft[name]).all() for name in sft)
    assert any((focal[name] != sft[name]).any() for name in sft)
    assert json.loads((tmp_path / "focal" / "lineage.json").read_text())["method"] == "focal"
    log = json.loads((tmp_path / "focal" / "trainer_state.json").read_text())["log_history"]
    assert 0 < log[0]["focus"] < 1


def test_lists_with_plugins_import_no_torch(installed: dict[str, str]) -> None:
    code = "import sys, dare_bench.cli.ls as ls; ls.trainers(); ls.models(); ls.suites(); ls.tasks('reverse')"
    code += "; assert not {'torch', 'lm_eval'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=installed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert {"focal", "masked_qwen3", "digits:", "reverse"} <= set(done.stdout.split())


def test_the_family_is_qwen3_without_the_causal_mask(masked: Path) -> None:
    from transformers import Qwen3ForCausalLM

    ids = torch.randint(0, 299, (1, 24), generator=torch.Generator().manual_seed(1))
    reference = Qwen3ForCausalLM.from_pretrained(masked, attn_implementation="eager").eval()
    everywhere = {"full_attention": torch.zeros(1, 1, 24, 24)}
    with torch.no_grad():
        expected = reference(input_ids=ids, attention_mask=everywhere).logits[0]
        causal = reference(input_ids=ids).logits[0]
    logits = dare_bench.load(masked, device="cpu").logits(ids[0].tolist())
    assert torch.allclose(logits, expected, atol=1e-5)
    assert not torch.allclose(logits, causal, atol=1e-2)


def test_the_family_validates_and_has_its_ids_and_limits(masked: Path) -> None:
    failed = [check for check in validate(str(masked), device="cpu") if not check.passed]
    assert not failed
    model = dare_bench.load(masked, device="cpu")
    assert (model.spec.family, model.spec.mask_id, model.spec.eos_ids) == ("masked_qwen3", 302, (299,))
    assert (model.spec.predicts, model.spec.attention) == ("same", "bidirectional")
    (part,) = (name for name in program_parts(model.loaded) if name.startswith("plugin"))
    assert part == "plugin dare-mine" and program_parts(model.loaded)[part].startswith("ast:")


def test_without_the_plugin_its_checkpoints_are_of_an_unknown_family(masked: Path, monkeypatch: Any) -> None:
    ours = {key: entry for key, entry in registry()._entries.items() if entry.plugin is None}
    monkeypatch.setattr(registry(), "_entries", ours)
    with pytest.raises(CheckpointError, match="'masked-qwen3'"):
        dare_bench.load(masked)


def test_family_and_task_train_evaluate_and_rank_together(masked: Path, tmp_path: Path) -> None:
    need_package("lm_eval")
    evaluation = {"tasks": "digits", "limit": 3}
    trained = dare_bench.train(
        method="sft", model=str(masked), task="reverse", rows=64, max_steps=2, eval=evaluation, device="cpu",
        output_path=str(tmp_path / "out"), report_to="none",
    )  # fmt: skip
    assert {run.tasks[0]: run.status for run in trained.runs} == {"reverse": "complete", "dare_sort": "complete"}
    for run_ in trained.runs:
        assert run_.block is not None and run_.block.model.family == "masked_qwen3"
    again = dare_bench.evaluate(model=str(trained.path), tasks="reverse", limit=3, max_rows=2, progress=False,
                                output_path=str(tmp_path / "again"))  # fmt: skip
    (first,) = (run for run in trained.runs if run.tasks == ["reverse"])
    answers = [[(row["doc_id"], row["resps"]) for row in found.samples("reverse")] for found in (first, again)]
    assert answers[0] == answers[1] and len(answers[0]) == 3
    build([tmp_path / "out" / "runs"], tmp_path / "site")
    page = (tmp_path / "site" / "table.html").read_text()
    assert "masked_qwen3" in page and "reverse" in page


def test_training_rows_and_reward_of_the_task(here: None) -> None:
    from dare_bench.training.rewards import rewards
    from dare_bench.types import RewardPrompt

    data = registry().get("training_data", "reverse").load()
    rows = data.rows(2000, 0)
    folder = Path(registry().get("task_folder", "dare-reverse").target)
    tested = {json.loads(line)["digits"] for line in (folder / "test.jsonl").read_text().splitlines()}
    assert len(tested) == 50 and not tested & {row["doc"]["digits"] for row in rows}
    assert rows == data.rows(2000, 0) and rows != data.rows(2000, 1)
    assert all(pair["chosen"] != pair["rejected"] for pair in data.pairs(50, 0))
    row = RewardPrompt("reverse 314159=", "951413", "reverse", "row 1", {"digits": "314159"})
    right, mixed, wrong = rewards([row] * 3, ["951413", "314159", "000000"], {"format_weight": 0.1})
    assert [(r.value, r.accuracy) for r in (right, mixed, wrong)] == [(1.0, 1.0), (0.1, 0.0), (0.0, 0.0)]


ADD = "registry.add({!r}, {!r}, {!r}, origin='me')".format
BROKEN = {
    "import": ("import nothing_of_this_name", "pass"),
    "exit": ("", "raise SystemExit(3)"),
    "interrupt": ("", "raise KeyboardInterrupt"),
    "twice": ("", f"{ADD('reward', 'fine', 'a:b')}; {ADD('trainer', 'sft', 'a:b')}"),
    "late": ("", ADD("strategy", "late", "missing_module:X")),
}
"""By plugin: what its module does when it is imported, and what ``register`` does."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process with plugins that do not work."""
    place = tmp_path_factory.mktemp("broken")
    for name, (imported, registers) in BROKEN.items():
        (place / f"broken_{name}.py").write_text(f"{imported}\ndef register(registry):\n    {registers}\n")
        about = place / f"broken_{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: broken-{name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[dare_bench.plugins]\n{name} = broken_{name}:register\n")
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    return {**environment, "DARE_BENCH_PLUGINS": ",".join(BROKEN)}


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "rewards"),
        ("ls", "tasks", "dare_sort"),
        ("train", "sft", "--help"),
        ("train", "sft", *ASKED, "--dry-run"),
        ("eval", "--model", "tiny-llada", "--tasks", "dare_arithmetic", "--limit", "1", "--dry-run"),
    ],
)
def test_plugins_that_do_not_work_are_named_and_left_out(broken: dict[str, str], words: tuple[str, ...]) -> None:
    done = command.run(*words, env=broken)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("warning: plugin")]
    assert [line.split("'")[1] for line in lines] == ["exit", "import", "interrupt", "twice"], done.stderr
    assert "SystemExit: 3" in lines[0] and "No module named 'nothing_of_this_name'" in lines[1]
    assert "KeyboardInterrupt was raised, and not by Ctrl-C" in lines[2]
    assert "'sft' is registered twice" in lines[3] and "a:b by me" in lines[3] and "dare_bench.trainers" in lines[3]
    assert "fine" not in done.stdout.split(), "nothing of a plugin that is left out stays"


def test_a_target_that_does_not_import_is_left_out_of_lists(broken: dict[str, str]) -> None:
    done = command.run("ls", "strategies", env=broken)
    assert done.returncode == 0 and "threshold" in done.stdout and "late" not in done.stdout.split()
    (line,) = (line for line in done.stderr.splitlines() if "missing_module" in line)
    assert line.startswith("warning: strategy 'late' of the plugin 'late' does not import")
    words = ("--model", "tiny-llada", "--tasks", "dare_arithmetic", "--limit", "1", "--gen-kwargs", "strategy=late")
    asked = command.run("eval", *words, "--dry-run", env=broken)
    assert asked.returncode == 2 and "'late' does not import" in asked.stderr and "Traceback" not in asked.stderr


def test_doctor_shows_plugins_and_reasons(broken: dict[str, str], installed: dict[str, str]) -> None:
    done = command.run("doctor", "--json", env=broken)
    assert done.returncode == 1
    found = {row["name"]: row for row in json.loads(done.stdout)}
    assert {name: found[f"plugin {name}"]["level"] for name in BROKEN} == {
        "import": "bad",
        "exit": "bad",
        "interrupt": "bad",
        "twice": "bad",
        "late": "ok",
    }
    assert "SystemExit" in found["plugin exit"]["detail"] and "broken-exit 1.0" in found["plugin exit"]["detail"]
    good = {row["name"]: row for row in json.loads(run(installed, "doctor", "--json"))}
    assert "family masked_qwen3" in good["plugin dare-mine"]["detail"]


def test_the_help_needs_no_plugin(broken: dict[str, str]) -> None:
    done = command.run("--help", env=broken)
    assert done.returncode == 0 and not done.stderr
