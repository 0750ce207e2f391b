"""How recipe and suite files are read: defaults, variants, names, what one word stands for, whose settings win, and
what a malformed file says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from paths import ROOT
from require import need_package

from dare_bench import recipe_table, recipes, suites
from dare_bench.config import RunSpec, run_spec
from dare_bench.errors import CheckpointError, DataError, UnknownNameError, UsageError
from dare_bench.harness.lm_eval.task_index import TaskIndex
from dare_bench.loading import family_of
from dare_bench.registry import registry
from dare_bench.suites import Suite, SuiteEntry

GOOD = """
checkpoint: toy
model: org/toy
family: llada
config: {n_layers: 2, d_model: 8}
defaults:
  published: {unit: percent, metric: accuracy, measures: accuracy, mean_over: documents, cache: none, source: paper}
  run: {harness: lm-eval, decoding: {gen_length: 8}}
  settings: partly
  missing: [$seed]
variants:
  long: {run: {decoding: {gen_length: 64}}, doubts: [long]}
scores:
  a: {published: {value: 50, test_set: toys}, run: {tasks: toy}}
  b: {like: [a, long], published: {value: 25}}
"""
SHARED = """
sources: {paper: {title: A paper}}
test_sets: {toys: {id: toys, documents: 4}}
tasks: {"lm-eval:toy": {shots: 2, score: {task: toy, metric: acc}}}
notes: {seed: the seed}
variants: {wide: {doubts: [wide]}}
"""


def write(folder, text=GOOD, shared=SHARED):
    (folder / "shared").mkdir()
    (folder / "shared" / "facts.yaml").write_text(shared)
    (folder / "toy.yaml").write_text(text)
    return folder / "toy.yaml"


def test_defaults_like_and_names_are_filled_in(tmp_path):
    scores = recipes.read(write(tmp_path)).scores
    assert scores["a"].run.decoding == {"gen_length": 8} and scores["a"].run.shots == 2
    assert scores["b"].run.decoding == {"gen_length": 64} and scores["b"].run.tasks == ("toy",)
    assert scores["b"].published.value == 25 and scores["b"].published.test_set.documents == 4
    assert scores["b"].missing == ("the seed",) and scores["b"].doubts == ("long",) and scores["a"].doubts == ()
    assert scores["a"].score.model_dump() == {"task": "toy", "metric": "acc", "filter": "none"}


def test_an_entry_can_be_like_a_variant_of_the_shared_files(tmp_path):
    scores = recipes.read(write(tmp_path, GOOD.replace("[a, long]", "[a, wide]"))).scores
    assert scores["b"].doubts == ("wide",)


@pytest.mark.parametrize(
    ("own", "like", "task", "said"),
    [
        ("[one]", "[two]", "", ("base", "one", "two", "mine")),
        ("[one]", "{only: [two]}", "", ("two", "mine")),
        ("{only: [one]}", "[two]", "", ("one", "two", "mine")),
        ("{only: []}", "[]", "", ("mine",)),
        ("[base, one]", "[one]", "", ("base", "one", "mine")),  # none twice
        ("[one]", "{only: [two]}", "doubts: [the task], ", ("two", "mine", "the task")),
        ("null", "[]", "", ("base", "mine")),
    ],
)
def test_doubts_are_added_up_unless_only_some_are_wanted(tmp_path, own, like, task, said):
    text = GOOD.replace("  missing: [$seed]\n", "  missing: [$seed]\n  doubts: [base]\n")
    text = text.replace("run: {tasks: toy}}", f"run: {{tasks: toy}}, doubts: {own}}}").replace("[long]", like)
    text = text.replace("value: 25}}", "value: 25}, doubts: [mine]}")
    scores = recipes.read(write(tmp_path, text, SHARED.replace("{shots", f"{{{task}shots"))).scores
    assert scores["b"].doubts == said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("doubts: [long]", "doubts: long", "entry 'b': 'doubts' must be a list (added to inherited ones) or {only:"),
        ("doubts: [long]", "doubts: {also: [long]}", "or {only: [...]}, found {'also': ['long']}"),
        ("value: 50", "value: 500", "scores.a.published"),
        ("value: 50", "value: 500", "value=500.0 must lie between 0 and 100"),
        ("test_set: toys", "test_set: boys", "entry 'a': unknown test set 'boys'; closest: toys"),
        ("[$seed]", "[$sead]", "entry 'a': unknown note 'sead'; closest: seed"),
        ("[a, long]", "[a, short]", "entry 'b': unknown entry or variant 'short'"),
        ("[a, long]", "b", "entry 'b': 'like' is circular: b -> b"),
        ("missing: [$seed]", "missing: []", "only 'recorded' has none"),
        ("settings: partly", "settings: recorded", "settings='recorded' with 1 missing"),
        ("checkpoint: toy", "checkpoint: boy", "checkpoint='boy' must be the file's name, 'toy'"),
        ("tasks: toy}", "tasks: boy}", "scores.a.score.task"),
        ("tasks: toy}", "tusks: toy}", "scores.a.run.tusks"),
        ("family: llada", "family: llada\nabout: 3", "about=3"),
        ("  b:", "  long:", "'long' is both a variant and a score"),
        ("  long: {", "  wide: {", "'wide' is already a variant in the shared files; rename this one"),
        ("scores:", "scores: 3\nmore:", "'scores' must be a mapping, found int"),
        ("run: {tasks: toy}}", "run: null}", "without 'run', 'doubts' must give the reason"),
        ("family: llada", "family: llada\nfamily: dream", "duplicate key 'family'"),
    ],
)
def test_a_malformed_file_is_one_line_that_names_file_and_entry(tmp_path, old, new, said):
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(DataError) as seen:
        recipes.read(path)
    text = str(seen.value)
    assert text.startswith(f"{path}: ") and said in text and "\n" not in text


def test_an_unknown_section_of_the_shared_facts_is_refused(tmp_path):
    with pytest.raises(DataError, match="unknown section 'sauces'; closest: sources"):
        recipes.read(write(tmp_path, shared=SHARED.replace("sources", "sauces")))


def test_a_malformed_table_of_the_shared_facts_is_one_line(tmp_path, monkeypatch):
    path = write(tmp_path, shared=SHARED + "tables: {paper: {scores: many}}\n")
    fake = SimpleNamespace(get=lambda kind, name: SimpleNamespace(target=str(path)), names=lambda kind: ["toy"])
    monkeypatch.setattr(recipes, "registry", lambda: fake)
    monkeypatch.setattr(recipe_table, "registry", lambda: fake)
    with pytest.raises(DataError, match=r"table 'paper' of the shared recipe files: .*scores") as seen:
        recipe_table.markdown()
    assert "\n" not in str(seen.value)


def test_a_plugins_recipes_are_found(tmp_path, monkeypatch):
    path = write(tmp_path)
    entry = SimpleNamespace(target=str(path))
    fake = SimpleNamespace(get=lambda kind, name: entry, names=lambda kind: ["toy"])
    monkeypatch.setattr(recipes, "registry", lambda: fake)
    assert [recipe.name for recipe in recipes.find("toy")] == ["toy/a", "toy/b"]


# -- The configs of recipe files in the published layout open as the file's family, with its sh ------------------------


QWEN3, QWEN2 = ("a2d-qwen3", "A2DQwen3LMHeadModel"), ("a2d-qwen2", "A2DQwen2LMHeadModel")
PUBLISHED = {  # model_type and architecture of config.json, what a state predicts, parameters in billions
    "qwen3-0.6b-diffusion-mdlm": (*QWEN3, "same", 0.60),
    "qwen3-0.6b-diffusion-bd3lm": (*QWEN3, "same", 0.60),
    "qwen2.5-coder-0.5b-diffusion-mdlm": (*QWEN2, "same", 0.49),
    "qwen2.5-coder-0.5b-diffusion-bd3lm": (*QWEN2, "same", 0.49),
    "open-dcoder-0.5b": ("qwen2", "Qwen2ForCausalLM", "next", 0.49),
    "fast-dllm-v2-1.5b": ("Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM", "next", 1.54),
    "fast-dllm-v2-7b": ("Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM", "next", 7.62),
    "trado-4b-instruct": ("sdar", "SDARForCausalLM", "same", 4.41),
    "trado-8b-instruct": ("sdar", "SDARForCausalLM", "same", 8.19),
    "trado-8b-thinking": ("sdar", "SDARForCausalLM", "same", 8.19),
    "dream-coder-7b-instruct": ("Dream", "DreamModel", "next", 7.62),
    "dreamon-7b": ("Dream", "DreamModel", "next", 7.62),
    "diffucoder-7b-cpgrpo": ("Dream", "DreamModel", "next", 7.62),
    "d3llm-dream": ("Dream", "DreamModel", "next", 7.62),
    "d3llm-coder": ("Dream", "DreamModel", "next", 7.62),
    "d3llm-llada": ("llada", "LLaDAModelLM", "same", 8.02),
    "illada-8b-base": ("illada", "ILLaDAForCausalLM", "same", 7.62),
    "illada-8b-instruct": ("illada", "ILLaDAForCausalLM", "same", 7.62),
    "llada2.2-flash": ("llada2_moe", "LLaDA2MoeModelLM", "same", 102.89),
    "diffusiongemma-26b-a4b-it": ("diffusion_gemma", "DiffusionGemmaForBlockDiffusion", "same", None),
}
BY_NAME = ("open-dcoder-0.5b",)
"""Checkpoints whose config.json is that of another family: they need --family."""
LIKE_ANOTHER = {"llada2.2-flash": "llada2"}
"""Checkpoints that open without --family, too, as the family of an earlier version with the same config.json."""


@pytest.fixture(params=PUBLISHED)
def checkpoint(request):
    return request.param


@pytest.fixture
def folder(checkpoint, tmp_path):
    """A folder with the name of the checkpoint and its config.json."""
    file, (model_type, architecture, *_) = recipes.load(checkpoint), PUBLISHED[checkpoint]
    folder = tmp_path / file.model.rpartition("/")[2]
    folder.mkdir()
    config = {**file.config, "model_type": model_type, "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_published_config_resolves_to_the_family_of_its_recipes(checkpoint, folder):
    file = recipes.load(checkpoint)
    if checkpoint not in BY_NAME:
        assert family_of(folder).name == LIKE_ANOTHER.get(checkpoint, file.family)
        assert family_of(folder, file.family).name == file.family
        return
    tokens = {"added_tokens": [{"id": 3, "content": "<M>"}]}
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(CheckpointError, match=f"give --family NAME.*{file.family}"):
        family_of(folder)


def test_a_config_has_the_published_size_and_shift(checkpoint):
    file, (*_, predicts, billions) = recipes.load(checkpoint), PUBLISHED[checkpoint]
    if billions is None:  # no widths are published, so that nothing can be computed from its config
        with pytest.raises(CheckpointError, match="num_experts"):
            registry().get("family", file.family).load().described(file.config)
        return
    opened = registry().get("family", file.family).load().described(file.config)
    assert opened.spec.predicts == predicts
    weights = {weight.data_ptr() or id(weight): weight.numel() for weight in opened.network.parameters()}
    assert sum(weights.values()) / 1e9 == pytest.approx(billions, abs=0.006)


ISSUE = (
    "mmlu mmlu-pro hellaswag arc-c gsm8k math math-500 gpqa aime24 aime25 olympiadbench humaneval mbpp"
    " c-eval bbh ifeval countdown sudoku"
)
BUNDLED = ("dare", "dare-smoke")


@pytest.fixture(params=BUNDLED)
def suite(request: pytest.FixtureRequest) -> Suite:
    return suites.load(request.param)


def test_dare_has_every_benchmark_and_the_smoke_suite_all_but_the_gated_one() -> None:
    dare, smoke = suites.load("dare"), suites.load("dare-smoke")
    assert [entry.name for entry in dare.entries] == ISSUE.split()
    open_ones = {entry.name for entry in dare.entries if not entry.gated}
    assert {entry.name for entry in dare.entries} - open_ones == {"gpqa"}
    assert open_ones <= {entry.name for entry in smoke.entries}
    assert all(entry.limit is not None and entry.limit <= 2 for entry in smoke.entries)


def test_what_cannot_be_had_freely_is_said(suite: Suite) -> None:
    for entry in suite.entries:
        if entry.gated:
            assert "hub" in entry.needs and "gated" in entry.note
            assert "data/gpqa/gpqa_diamond.csv" in entry.note and "COMPASS_DATA_CACHE" in entry.note
        code = entry.name.partition("-")[0] in ("humaneval", "mbpp")
        assert ("sandbox" in entry.needs) == code, entry.name


def test_only_the_smoke_suite_sets_decoding() -> None:
    assert not any(entry.decoding or entry.likelihood or entry.limit for entry in suites.load("dare").entries)


def test_each_entry_makes_a_valid_run(suite: Suite) -> None:
    for entry, fields in suite.specs({"model": "tiny-llada"}):
        spec = run_spec(**fields)
        assert spec.harness == entry.harness and spec.tasks == entry.tasks and spec.repeats == entry.repeats


def test_the_docs_name_every_task_of_dare() -> None:
    text = (ROOT / "docs" / "suites.md").read_text()
    for entry in suites.load("dare").entries:
        assert entry.name in text
        assert all(f"`{task}`" in text for task in entry.tasks), entry.name


def test_the_docs_say_what_each_need_is_and_where_gated_data_goes() -> None:
    text = (ROOT / "docs" / "suites.md").read_text()
    assert all(f"`{need}` is" in text for need in get_args(suites.Need))
    assert "data/gpqa/gpqa_diamond.csv" in text and "COMPASS_DATA_CACHE" in text


def test_a_word_that_is_no_suite_may_be_a_task() -> None:
    assert suites.find("gsm8k") is None
    result = suites.find("dare")
    assert result is not None and result.name == "dare"
    with pytest.raises(UnknownNameError, match="dare-smoke"):
        suites.load("dare-smok")


def _one(**entry: Any) -> Suite:
    return Suite(name="s", entries=(SuiteEntry(**{"name": "a", "harness": "lm-eval", "tasks": "t", **entry}),))


def _fields(suite: Suite, **given: Any) -> dict[str, Any]:
    return suite.specs(given)[0][1]


def test_the_command_line_wins() -> None:
    suite = _one(num_fewshot=5, limit=2, repeats=8, apply_chat_template=True, decoding={"gen_length": 32, "steps": 8})
    assert _fields(suite) == {
        "harness": "lm-eval", "tasks": ("t",), "num_fewshot": 5, "limit": 2, "repeats": 8,
        "apply_chat_template": True, "decoding": {"gen_length": 32, "steps": 8},
    }  # fmt: skip
    built = _fields(suite, num_fewshot=0, limit=7, repeats=1, apply_chat_template=False, decoding={"gen_length": 64})
    assert (built["num_fewshot"], built["limit"], built["repeats"], built["apply_chat_template"]) == (0, 7, 1, False)
    assert built["decoding"] == {"gen_length": 64, "steps": 8}


def test_another_name_of_the_same_field_wins_too() -> None:
    suite = _one(decoding={"gen_length": 32, "steps": 8})
    assert _fields(suite, decoding={"max_new_tokens": 64})["decoding"] == {"max_new_tokens": 64, "steps": 8}


def test_what_is_none_was_not_given_and_the_suites_word_is_no_task() -> None:
    assert _fields(_one(limit=2), limit=None, tasks=("dare",), model="m") == {
        "harness": "lm-eval", "tasks": ("t",), "limit": 2, "model": "m",
    }  # fmt: skip


def test_named_documents_take_the_place_of_a_limit() -> None:
    assert "limit" not in _fields(_one(limit=2), samples={"t": [5]})
    assert _fields(_one(limit=2), samples={"t": [5]}, limit=3)["limit"] == 3, "the engine refuses both, not the suite"


def test_a_harness_for_a_whole_suite_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--harness opencompass and the suite 's' exclude each other"):
        _one().specs({"harness": "opencompass"})


def test_merging_does_not_write_into_the_suite() -> None:
    suite = _one(decoding={"gen_length": 32})
    _fields(suite)["decoding"]["gen_length"] = 1
    assert suite.entries[0].decoding == {"gen_length": 32}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("entries: []", "entries"),
        ("entries: [{name: a, harness: x, tasks: []}]", "tasks"),
        ("entries: [{name: a, harness: x, tasks: t, shots: 3}]", "'entries.0.shots' is not a field of a suite"),
        ("entries: [{name: a, harness: x, tasks: t, repeats: 0}]", "repeats=0"),
        ("entries: [{name: a, harness: x, tasks: t, needs: gpu}]", "needs.0='gpu'"),
        ("entries: [{name: a, harness: x, tasks: t}, {name: a, harness: x, tasks: u}]", "duplicate entry 'a'"),
    ],
)
def test_a_file_that_is_no_suite(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        suites.read(path)
    assert says in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_is_named_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("entries: [{name: a, harness: lm-eval, tasks: t}]")
    assert suites.read(path).name == "mine"


def test_all_that_an_entry_sets_is_a_setting_of_a_run() -> None:
    full = SuiteEntry(
        name="a", harness="h", tasks=("t",), num_fewshot=1, repeats=2, apply_chat_template=True, limit=1,
        decoding={"gen_length": 1}, likelihood={"mc_num": 1},
    )  # fmt: skip
    assert set(full.fields()) <= set(RunSpec.model_fields)


def test_tasks_of_lm_eval_exist(suite: Suite) -> None:
    need_package("lm_eval")
    known = set(TaskIndex([]).entries)
    named = {task for entry in suite.entries if entry.harness == "lm-eval" for task in entry.tasks}
    assert named and named <= known, named - known


def test_configs_of_opencompass_exist_load_and_are_judged_by_rules(suite: Suite) -> None:
    need_package("opencompass")
    from dare_bench.harness.opencompass.catalog import ConfigCatalog

    catalog = ConfigCatalog()
    for word in (task for entry in suite.entries if entry.harness == "opencompass" for task in entry.tasks):
        (wanted,) = catalog.match([word])
        for dataset in catalog.load(wanted):
            evaluator = dataset["eval_cfg"]["evaluator"]
            judge = evaluator.get("judge_cfg") or evaluator.get("llm_evaluator")
            assert judge is None and "judge" not in str(evaluator["type"]).lower(), f"{word} asks another model"
