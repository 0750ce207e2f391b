"""Recipes: every file as it ships, what is made of it, and what a malformed one says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import a2d_checkpoints
import golden
import illada_folder
import jsonschema
import open_dcoder_folder
import pytest
from paths import ROOT
from require import need_package
from typer.testing import CliRunner

from dare_bench import recipes
from dare_bench.config import run_spec
from dare_bench.errors import UnknownNameError, UsageError
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.registry import registry
from dare_bench.runs.schema import RecipeBlock

CHECKPOINTS = registry().names("recipe")
ALL = [recipe for name in CHECKPOINTS for recipe in recipes.find(name)]
RUNNABLE = [recipe for recipe in ALL if recipe.entry.run is not None]
BENCHES = (
    *("mmlu", "mmlu-pro", "hellaswag", "arc-c", "gsm8k", "math"),
    *("gpqa", "aime24", "aime25", "olympiadbench", "humaneval", "mbpp"),
)
COLUMNS = (
    "llada-8b-instruct",
    "dream-7b-instruct",
    "sdar-8b-chat",
    "sdar-30b-a3b-chat",
    "llada2.0-mini",
    "llada2.1-mini",
)
TINY = {"llada_moe": "tiny-llada", "llada2.1": "tiny-llada2"}
GOLDEN = {"fast_dllm_v2": "fast_dllm_v2", "llada2.2": "llada22"}
MADE = {  # families without a bundled checkpoint
    "a2d_mdlm": a2d_checkpoints.made,
    "a2d_bd3lm": a2d_checkpoints.made,
    "open_dcoder": open_dcoder_folder.written,
    "illada": illada_folder.written,
}


def is_count(recipe):
    """Is the score a mean of right and wrong over a known number of documents? (truthfulqa's mc2 is a probability.)"""
    published = recipe.entry.published
    return (
        published.mean_over == "documents"
        and published.test_set.documents is not None
        and published.test_set.id.partition("/")[0] != "truthfulqa"
    )


def test_a_value_is_a_share_of_its_documents():
    """k/n for a whole k, rounded to the digits given: a typing error rarely is. What is none has to say so."""
    counted = list(filter(is_count, ALL))
    assert len(counted) > 300
    for recipe in counted:
        published = recipe.entry.published
        count = published.test_set.documents * (published.repeats or 1)
        digits = 2 if published.source.title.startswith("DARE, ") else len(repr(published.value).partition(".")[2])
        nearest = 100 * round(published.fraction * count) / count
        is_share = abs(nearest - published.value) <= 0.5 * 10**-digits + 1e-9
        reported = any("not a multiple of one over the number of documents" in text for text in recipe.entry.doubts)
        assert is_share != reported, (recipe.name, published.value, nearest, count)


def test_decoding_and_likelihood_are_the_familys(tiny_specs):
    for recipe in RUNNABLE:
        try:
            check_settings(recipe, tiny_specs)
        except Exception as error:
            error.add_note(recipe.name)
            raise


def check_settings(recipe, tiny_specs):
    """What a recipe sets is what its family resolves, and its sampler and cache are those of the published score."""
    fields = recipe.fields()
    family, spec = tiny_specs(fields["family"])
    decoding = family.resolve(fields["decoding"], spec)
    sampler = family.sampler(decoding, spec)
    for name, value in fields["decoding"].items():
        assert getattr(decoding, name) == value
    settings = family.likelihood_settings(fields["likelihood"], spec)
    assert settings.items() >= fields["likelihood"].items()
    cache = recipe.entry.published.cache
    if recipe.entry.run.kind == "generate" and cache in ("none", "prefix", "dual") and family.name.startswith("llada_"):
        assert sampler.attention.cache is CACHES[cache]
    if family.name == "llada" and cache != "unknown":
        assert decoding.cache == cache, "the run must use the cache that the score was taken with"
    run_spec(**fields)


@pytest.fixture(scope="module")
def tiny_specs(tmp_path_factory):
    """Family and ModelSpec of a small checkpoint that stands for a family."""
    from dare_bench.loading import load

    opened = {}

    def of(name):
        if name not in opened:
            if name in GOLDEN:
                model = golden.model(GOLDEN[name])
            elif name in MADE:
                ids = {"mask_id": a2d_checkpoints.MASK} if name.startswith("a2d") else {}
                folder = MADE[name](tmp_path_factory.mktemp(name) / "model")
                model = load(folder, device="cpu", dtype="float32", family=name, **ids)
            else:
                model = load(TINY.get(name, f"tiny-{name}"), device="cpu", dtype="float32")
            opened[name] = (registry().get("family", name).load(), model.spec)
        return opened[name]

    return of


def test_lm_eval_tasks_exist():
    need_package("lm_eval")
    from dare_bench.harness.lm_eval.task_index import TaskIndex

    index = TaskIndex()
    wanted = {task for recipe in RUNNABLE if recipe.entry.run.harness == "lm-eval" for task in recipe.entry.run.tasks}
    assert len(wanted) > 15
    assert sorted(wanted - set(index.entries)) == []


def test_opencompass_configs_exist():
    package = Path(need_package("opencompass").__file__).parent
    import dare_bench

    ours = Path(dare_bench.__file__).parent / "harness" / "opencompass" / "configs"
    stems = {file.stem for folder in (package / "configs" / "datasets", ours) for file in folder.rglob("*.py")}
    wanted = {
        task.partition(":")[0] for r in RUNNABLE if r.entry.run.harness == "opencompass" for task in r.entry.run.tasks
    }
    assert len(wanted) > 15
    assert sorted(wanted - stems) == []


def shots_of(config):
    """Worked examples in a prompt of an OpenCompass data set: fixed rows, turns already answered, or in the text."""
    infer = config["infer_cfg"]
    rows = len(infer["retriever"].get("fix_id_list") or ())
    template = infer.get("prompt_template", {}).get("template", "")
    turns = template["round"] if isinstance(template, dict) else []
    requested = [number for number, turn in enumerate(turns) if turn["role"] == "HUMAN"]
    answered = sum(turn["role"] == "BOT" for turn in turns[: requested[-1]]) if requested else 0
    text = turns[requested[-1]]["prompt"] if requested else str(template)
    questions = len(re.findall(r"^Q(?:uestion)?: ", text, re.MULTILINE))
    asked = "{prompt}" not in text  # DROP's rows have the word themselves
    return rows + answered + max(questions - asked, 0) + text.count("[DONE]")


def test_shots_are_those_of_the_opencompass_configs():
    need_package("opencompass")
    from dare_bench.harness.opencompass.catalog import ConfigCatalog

    catalog = ConfigCatalog()
    stated = {r.entry.run.tasks: r.entry.run.shots for r in RUNNABLE if r.entry.run.harness == "opencompass"}
    assert len(stated) > 15 and {0, 3, 4, 5, 10} == set(stated.values())
    for (task,), shots in stated.items():
        (wanted,) = catalog.match([task])
        assert {shots_of(config) for config in catalog.load(wanted)} == {shots}, task


def test_the_doubts_of_dares_tables_are_where_they_belong():
    def doubts(name):
        return " ".join(recipes.find(name)[0].entry.doubts)

    trained = ("gsm8k", "math", "humaneval", "mbpp")  # in table 1 and in those of training
    for checkpoint, table in (("llada-8b-instruct", "dare-table2"), ("dream-7b-instruct", "dare-table3")):
        for bench in BENCHES:
            assert ("tables disagree" in doubts(f"{checkpoint}/{bench}")) == (bench in trained)
        assert all("tables disagree" in doubts(f"{checkpoint}/{bench}.{table}") for bench in trained)
    mixed = ("mmlu", "mmlu-pro", "gsm8k", "math", "gpqa", "humaneval", "mbpp")
    for recipe in ALL:
        is_table_1 = recipe.entry_name in BENCHES and recipe.file.checkpoint in COLUMNS
        wanted = is_table_1 and recipe.entry_name in mixed
        assert ("mixes test sets" in doubts(recipe.name)) == wanted, recipe.name
    for bench, output in (("countdown", "mean reward, not accuracy"), ("sudoku", "not of boards solved")):
        assert output in doubts(f"llada-8b-instruct/{bench}.dare-table2")
        assert "tables disagree" not in doubts(f"llada-8b-instruct/{bench}.dare-table2")  # table 1 has no such row
    for year in ("aime24", "aime25"):
        for checkpoint in ("sdar-8b-chat", "llada2.0-mini", "llada2.1-mini"):
            assert "multiple of 1/30" in doubts(f"{checkpoint}/{year}")
        for checkpoint in ("llada-8b-instruct", "dream-7b-instruct"):
            is_zero = recipes.find(f"{checkpoint}/{year}")[0].entry.published.value == 0
            output = "A score of 0 does not tell" if is_zero else "multiple of 1/240"
            assert output in doubts(f"{checkpoint}/{year}")
    for recipe in ALL:
        assert ("the better of cache on and off" in doubts(recipe.name)) == (recipe.name == "llada-8b-instruct/math")
    assert "One answer a problem" in doubts("sdar-30b-a3b-chat/aime24")
    assert "multiple of 1/30" in doubts("sdar-30b-a3b-chat/aime25")
    ours = {  # what makes a task another than the published one stands with every recipe that runs it
        "gpqa_fewshot_gen": "are ours: GPQA",
        "ARC_c_gen": "development set (295 questions)",
        "OlympiadBench_0shot_gen_be8b13": "five subsets were taken",
    }
    for recipe in RUNNABLE:
        for task, output in ours.items():
            assert (task in recipe.entry.run.tasks) == (output in doubts(recipe.name)), recipe.name
    assert "--tasks" in doubts("sdar-8b-chat/olympiadbench") and "*maths_en*" in doubts("sdar-8b-chat/olympiadbench")
    for bench in BENCHES:  # no entry's own doubts take a default one away
        assert "draws at temperature 0" in doubts(f"llada2.0-mini/{bench}")
        assert "1024 tokens" in doubts(f"llada2.0-mini/{bench}") and "1024 tokens" in doubts(f"llada2.1-mini/{bench}")
        assert "leak into earlier" in doubts(f"llada2.1-mini/{bench}")
        assert "GPU types" in doubts(f"llada-8b-instruct/{bench}")
        assert "as the mask id" in doubts(f"sdar-30b-a3b-chat/{bench}")
    for bench in BENCHES:
        if bench != "arc-c":  # equal in both columns
            assert "larger of the" in doubts(f"llada-8b-instruct/{bench}")


def test_find():
    (item,) = recipes.find("llada-8b-instruct/gsm8k")
    assert item.name == "llada-8b-instruct/gsm8k" and item.entry_name == "gsm8k"
    assert [r.name for r in recipes.find("llada-1.5")] == [n for n in recipes.names() if n.startswith("llada-1.5/")]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llada-8b-instruct/gsm9k", "closest: llada-8b-instruct/gsm8k, "),
        ("lada-8b-instruct", "closest: llada-8b-instruct, "),
        ("lada-8b-instruct/gsm8k", "closest: llada-8b-instruct/gsm8k"),
        ("sdar-8b-chat/", "unknown recipe 'sdar-8b-chat/'"),
    ],
)
def test_an_unknown_name_gets_the_three_closest(name, said):
    with pytest.raises(UnknownNameError) as seen:
        recipes.find(name)
    text = str(seen.value)
    assert said in text and "\n" not in text
    assert len(text.partition("closest: ")[2].split(", ")) == 3


def test_fields_are_exactly_the_recipe():
    (recipe,) = recipes.find("llada-8b-instruct/gsm8k")
    assert recipe.fields() == {
        "model": "GSAI-ML/LLaDA-8B-Instruct",
        "family": "llada",
        "harness": "opencompass",
        "tasks": ("gsm8k_gen",),
        "apply_chat_template": True,
        "dtype": "bfloat16",
        "repeats": 1,
        "decoding": {
            "temperature": 0.0,
            "remasking": "low_confidence",
            "text_after_eos": "keep",
            "gen_length": 256,
            "steps": 256,
            "block_length": 8,
        },
        "likelihood": {},
        "recipe": "llada-8b-instruct/gsm8k",
    }


def test_a_score_without_a_task_cannot_be_run():
    (recipe,) = recipes.find("llada-8b-base/humaneval-fim")
    with pytest.raises(UsageError, match=r"recipe llada-8b-base/humaneval-fim cannot be run: .* in neither harness"):
        recipe.fields()
    assert recipe.block()["score"] == {}


def test_block_holds_the_published_score_as_a_fraction():
    (recipe,) = recipes.find("llada-8b-instruct/gsm8k")
    block = RecipeBlock.model_validate(recipe.block())
    assert block.published["value"] == pytest.approx(0.7968) and block.published["n"] == 1319
    assert block.published["source"].startswith(
        "DARE, evaluation result reproduction, arXiv 2604.04215, README, table 1"
    )
    assert block.score == {"task": "gsm8k", "metric": "accuracy", "filter": "none"}
    assert block.settings == "partly" and block.missing and block.doubts
    json.dumps(recipe.block())


def test_the_recipe_itself_deviates_in_nothing():
    for recipe in RUNNABLE:
        assert recipes.deviations(recipe, run_spec(**recipe.fields())) == [], recipe.name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "tiny-llada"}, "model: tiny-llada instead of GSAI-ML/LLaDA-8B-Instruct"),
        ({"decoding": {"gen_length": 64}}, "decoding.gen_length: 64 instead of 256"),
        ({"decoding": {"cache": "prefix"}}, "decoding.cache: prefix, which the recipe does not set"),
        ({"decoding": {"block_length": None}}, "decoding.block_length: not set instead of 8"),
        ({"limit": 50}, "limit: 50"),
        ({"repeats": 4}, "repeats: 4 instead of 1"),
        ({"harness": "lm-eval", "tasks": "gsm8k"}, "harness: lm-eval instead of opencompass"),
        ({"tasks": "gsm8k_gen,math_gen"}, "tasks: gsm8k_gen,math_gen instead of gsm8k_gen"),
        ({"apply_chat_template": False}, "apply_chat_template: false instead of true"),
        ({"dtype": None}, "dtype: null instead of bfloat16"),
        ({"num_fewshot": 2}, "num_fewshot: 2, which the recipe does not set"),
        ({"likelihood": {"mc_num": 4}}, "likelihood.mc_num: 4, which the recipe does not set"),
        ({"model_args": {"mask_id": 5}}, 'model_args: {"mask_id": 5}'),
        ({"apply_chat_template": "rag"}, "apply_chat_template: rag instead of true"),
        ({"fewshot_as_multiturn": False}, "fewshot_as_multiturn: false, which the recipe does not set"),
        ({"include_path": "mine"}, "include_path: mine"),
        ({"engine": "lmdeploy"}, "engine: lmdeploy, which the recipe does not set"),
        ({"seeds": 7}, "seeds: [7, 7, 7, 7] instead of [0, 1234, 1234, 1234]"),
    ],
)
def test_what_differs_from_the_recipe_is_named(change, said):
    (recipe,) = recipes.find("llada-8b-instruct/gsm8k")
    fields = recipe.fields()
    for group in ("decoding", "likelihood"):
        if group in change:
            change = {**change, group: {**fields[group], **change[group]}}
    assert said in recipes.deviations(recipe, run_spec(**{**fields, **change}))


def test_turns_are_no_deviation_where_there_are_none():
    """Without a chat template examples are one text, whatever fewshot_as_multiturn says."""
    (recipe,) = recipes.find("llada-8b-base/gsm8k")
    assert recipes.deviations(recipe, run_spec(**recipe.fields(), fewshot_as_multiturn=False)) == []


def test_an_alias_is_no_deviation():
    (recipe,) = recipes.find("dream-7b-instruct/gsm8k")
    fields = recipe.fields()
    decoding = dict(fields["decoding"])
    decoding["max_new_tokens"] = decoding.pop("gen_length")
    assert recipes.deviations(recipe, run_spec(**{**fields, "decoding": decoding})) == []


def test_the_schema_in_the_docs_is_the_programs(tmp_path):
    path = ROOT / "docs" / "recipes.schema.json"
    assert json.loads(path.read_text()) == recipes.json_schema()
    for name in CHECKPOINTS:
        jsonschema.validate(recipes.load(name).model_dump(mode="json"), recipes.json_schema())


def run_ls(*words):
    import typer

    from dare_bench.cli.ls import recipes as command

    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_ls_recipes():
    shown = run_ls().stdout
    assert all(f"\n{name} (" in f"\n{shown}" for name in CHECKPOINTS)
    row = next(line for line in shown.splitlines() if line.split()[:1] == ["llada-8b-instruct/gsm8k"])
    assert row.split()[1:4] == ["79.68%", "opencompass:gsm8k_gen", "partly"] and "DARE" in row
    assert "26.2% (per-cell accuracy)" in shown and "cannot be run" in shown
    item = run_ls("llada-8b-instruct/math").stdout
    assert "H200" in item and "not recorded: seed" in item and "5000 documents" in item


def test_ls_recipes_as_json():
    (file, *more) = json.loads(run_ls("--json").stdout)
    assert {file["checkpoint"], *(item["checkpoint"] for item in more)} == set(CHECKPOINTS)
    item = json.loads(run_ls("llada-1.5/gsm8k", "--json").stdout)
    assert list(item["scores"]) == ["gsm8k"] and item["scores"]["gsm8k"]["published"]["value"] == 83.6


def test_listing_imports_no_torch_and_no_harness():
    code = (
        "import sys; from dare_bench.cli.ls import recipes; recipes('llada-1.5');"
        "sys.exit(' '.join({'torch', 'lm_eval', 'opencompass', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
