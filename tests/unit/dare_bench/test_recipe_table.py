"""The tables that recipes come from, typed a second time, row by row as their sources have them; and that every score
of them has a recipe or a reason for having none."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dare_bench import recipes
from dare_bench.recipe_table import by_source, markdown
from dare_bench.registry import registry

BENCHES = (
    *("mmlu", "mmlu-pro", "hellaswag", "arc-c", "gsm8k", "math"),
    *("gpqa", "aime24", "aime25", "olympiadbench", "humaneval", "mbpp"),
)
"""Rows of DARE's tables of models."""
TABLE_1 = """
65.24 66.83 77.23 79.16 72.54 69.91
36.82 31.89 56.49 25.59 57.10 57.52
75.30 63.23 87.59 92.81 82.35 78.00
87.80 81.36 86.78 78.98 85.76 83.39
79.68 83.24 91.36 92.49 88.48 86.13
41.08 48.02 78.40 68.56 81.50 84.56
31.82 26.77 41.40 36.36 34.34 34.34
2.08 0.83 13.33 13.33 16.67 26.67
0.42 0.00 16.67 6.67 23.33 26.67
9.70 12.22 24.93 32.90 38.82 40.31
46.34 78.05 79.88 84.15 81.10 81.10
38.80 56.40 71.60 52.00 64.80 62.60
"""
MODELS = (
    *("llada-8b-instruct", "dream-7b-instruct", "sdar-8b-chat"),
    *("sdar-30b-a3b-chat", "llada2.0-mini", "llada2.1-mini"),
)
ENGINES = """
76.66 73.66 77.23
56.49 47.39 55.38
84.07 87.59 81.78
75.59 86.78 76.95
91.36 91.21 90.83
78.40 61.80 77.00
33.33 41.40 29.80
8.75 6.67 13.33
12.50 6.67 16.67
24.93 17.35 23.88
79.88 75.61 75.00
66.20 67.32 71.60
"""
"""SDAR-8B in DARE's README of 2026-02-27: Hugging Face, lmdeploy, SGLang."""
YEAR_2025 = """
75.40 75.40
52.07 52.07
67.67 87.59
69.83 86.78
88.10 87.95
48.10 52.80
28.28 36.36
8.75 6.67
10.00 6.67
17.81 17.35
73.17 73.17
53.80 55.40
"""
"""SDAR-8B in DARE's README of 2025-12-26: Hugging Face, lmdeploy."""
TABLE_2 = """
76.5 83.7 85.3 81.9 85.6 83.5 82.3
34.6 40.6 41.0 35.8 39.2 40.6 40.0
46.9 47.6 45.1 52.4 45.1 48.8 45.1
37.9 39.1 38.1 42.8 40.9 41.9 40.3
16.8 10.7 77.9 21.5 65.2 10.1 10.0
26.2 31.8 21.3 29.0 25.0 27.9 42.6
"""
TABLE_3 = """
77.2 82.5 80.3 85.7 59.4 83.9
39.6 49.7 40.4 50.7 25.2 48.9
57.9 60.7 61.6 58.5 17.7 56.7
56.2 56.5 60.3 57.5 54.4 58.7
"""
FAST_LLADA = """
79.3 79.5 79.2 78.5
77.5 77.0 77.6 77.2
33.5 33.3 33.4 33.2
37.2 36.2 36.8 36.0
41.5 42.7 43.9 43.3
43.9 45.7 43.3 44.5
29.4 29.6 28.4 28.2
14.8 13.4 15.0 13.8
"""
FAST_LONG = """
77.0 77.4 75.2 74.7
77.3 78.0 75.7 76.0
77.6 77.9 77.3 76.9
78.9 78.9 74.8 75.4
"""
FAST_DREAM = """
75.0 74.3 74.2 74.8
76.0 74.3 73.4 74.0
38.4 36.8 37.9 37.6
39.8 38.0 39.5 39.3
49.4 53.7 49.4 54.3
54.3 54.9 51.8 54.3
56.6 53.2 53.8 56.4
55.6 53.8 55.4 55.2
"""
SDAR = """
62.9 80.1 63.2 63.6 61.6 61.1 43.4
74.9 89.9 72.8 74.7 72.0 65.4 56.6
78.6 91.3 78.6 76.9 78.7 72.0 61.4
82.8 91.4 77.8 79.3 87.2 71.6 60.6
"""
SCI = """
78.1 76.7 60.0 60.7 40.7 42.3 66.7 72.3 37.9 59.9
77.9 73.4 59.2 58.7 49.1 51.4 66.0 72.8 38.2 59.6
"""
JUST = """
83.8 89.1 89.8
39.0 45.1 45.2
37.8 49.4 48.7
50.6 52.4 49.0
"""


def numbers(text):
    return [[float(cell) for cell in line.split()] for line in text.split("\n") if line]


def value(name):
    (recipe,) = recipes.find(name)
    assert recipe.entry.published.unit == "percent"
    return recipe.entry.published.value


@pytest.mark.parametrize(("column", "checkpoint"), enumerate(MODELS))
def test_dares_first_table_is_whole(column, checkpoint):
    for bench, row in zip(BENCHES, numbers(TABLE_1), strict=True):
        published = recipes.find(f"{checkpoint}/{bench}")[0].entry.published
        assert (published.value, published.unit) == (row[column], "percent"), bench
        assert published.source.table == "README, table 1" and published.source.commit.startswith("83ae8a3")


def test_sdars_engines_and_years_are_whole():
    for bench, row in zip(BENCHES, numbers(ENGINES), strict=True):
        best = max(row)
        assert value(f"sdar-8b-chat/{bench}") == best
        for engine, score in zip(("hf", "lmdeploy", "sglang"), row, strict=True):
            assert score == best or value(f"sdar-8b-chat/{bench}.{engine}") == score
    for bench, row in zip(BENCHES, numbers(YEAR_2025), strict=True):
        assert [value(f"sdar-8b-chat/{bench}.{engine}-2025") for engine in ("hf", "lmdeploy")] == row


LLADA_METHODS = ("d1", "coupled-grpo", "vrpo", "cj-grpo", "spg", "bgpo")
DREAM_METHODS = ("d1", "coupled-grpo", "cj-grpo", "spg", "bgpo")


@pytest.mark.parametrize(
    ("base", "table", "text", "benches", "methods"),
    [
        ("llada-8b-instruct", 2, TABLE_2, "gsm8k math humaneval mbpp countdown sudoku", LLADA_METHODS),
        ("dream-7b-instruct", 3, TABLE_3, "gsm8k math humaneval mbpp", DREAM_METHODS),
    ],
)
def test_dares_tables_of_training_are_whole(base, table, text, benches, methods):
    for bench, row in zip(benches.split(), numbers(text), strict=True):
        trained = [value(f"{base}-dare-rl/{bench}.{method}") for method in methods]
        assert [value(f"{base}/{bench}.dare-table{table}"), *trained] == row
    for recipe in recipes.find(f"{base}-dare-rl"):
        assert recipe.entry.run is None and recipe.entry.doubts[0].startswith("the weights are not published")


@pytest.mark.parametrize(("checkpoint", "text"), [("llada-8b-instruct", FAST_LLADA), ("dream-7b-base", FAST_DREAM)])
def test_fast_dllms_tables_are_whole_and_their_runs_use_what_the_column_says(checkpoint, text):
    names = [f"{bench}.fast-{length}" for bench in ("gsm8k", "math", "humaneval", "mbpp") for length in (256, 512)]
    for name, row in zip(names, numbers(text), strict=True):
        for column, score in zip(("", "-cache", "-parallel", "-both"), row, strict=True):
            (recipe,) = recipes.find(f"{checkpoint}/{name}{column}")
            decoding = recipe.entry.run.decoding
            assert recipe.entry.published.value == score and str(decoding["gen_length"]) in name
            assert decoding.get("cache") == ("prefix" if column in ("-cache", "-both") else None)
            assert decoding.get("threshold") == (0.9 if column in ("-parallel", "-both") else None)


def test_fast_dllms_long_tables_are_whole():
    names = ("fast-1024", "fast-1024-8shot", "fast-256-8shot", "fast-512-8shot")
    for name, row in zip(names, numbers(FAST_LONG), strict=True):
        for column, cache, score in zip(
            ("", "-parallel", "-both", "-dual"), (None, None, "prefix", "dual"), row, strict=True
        ):
            (recipe,) = recipes.find(f"llada-8b-instruct/gsm8k.{name}{column}")
            assert recipe.entry.published.value == score and recipe.entry.run.decoding.get("cache") == cache
            assert recipe.entry.run.num_fewshot == (8 if "8shot" in name else 5)
            assert ("threshold" in recipe.entry.run.decoding) == bool(column)


def test_sdars_and_justgrpos_tables_are_whole():
    benches = ("mmlu", "gsm8k", "math500", "mathbench", "humaneval", "mbpp", "ifeval")
    for size, row in zip(("1.7b", "4b", "8b", "30b-a3b"), numbers(SDAR), strict=True):
        suffix = ".paper" if size.startswith(("8", "30")) else ""
        assert [value(f"sdar-{size}-chat/{bench}{suffix}") for bench in benches] == row
    science = "mmlu-pro aime24 aime25 lmb-hard livecodebench-v5 livecodebench-v6 gpqa chembench physics proteinlmbench"
    for mode, row in zip(("greedy", "sampling"), numbers(SCI), strict=True):
        assert [value(f"sdar-30b-a3b-sci/{bench}.{mode}") for bench in science.split()] == row
    just = ("gsm8k/gsm8k", "math500/math500", "code/humaneval", "code/mbpp")
    for name, row in zip(just, numbers(JUST), strict=True):
        assert [value(f"llada-8b-justgrpo-{name}.{length}") for length in (128, 256, 512)] == row


SDAR_SETS = {  # DARE's opencompass/sdar_examples, by engine
    "mmlu": ("mmlu_gen_4d595a", "mmlu_gen", "mmlu_gen"),
    "mmlu-pro": ("mmlu_pro_gen", "mmlu_pro_few_shot_gen_bfaf90", "mmlu_pro_gen"),
    "gpqa": ("gpqa_fewshot_gen", "gpqa_gen_4baadb", "gpqa_fewshot_gen"),
    "humaneval": ("humaneval_gen", "humaneval_gen_base", "humaneval_gen_8e312c"),
    "mbpp": ("mbpp_gen", "sanitized_mbpp_gen_742f0c", "sanitized_mbpp_gen_742f0c"),
}


def test_sdars_scores_run_the_configs_of_their_engine():
    for bench, configs in SDAR_SETS.items():
        row = numbers(ENGINES)[BENCHES.index(bench)]
        for engine, config, score in zip(("hf", "lmdeploy", "sglang"), configs, row, strict=True):
            name = f"sdar-8b-chat/{bench}" if score == max(row) else f"sdar-8b-chat/{bench}.{engine}"
            run = recipes.find(name)[0].entry.run
            assert run.tasks == (config,), name
            assert run.decoding["remasking_strategy"].endswith("static" if engine == "hf" else "dynamic")
    for bench, config in {"math": "math_gen", "aime24": "aime2024_gen", "mbpp": "mbpp_gen"}.items():
        assert recipes.find(f"sdar-30b-a3b-chat/{bench}")[0].entry.run.tasks == (config,)


def test_lladas_caches_and_worked_examples_are_those_of_the_sources():
    for name in ("aime24", "mmlu.fast-dllm", "mmlu-pro.fast-dllm"):
        assert recipes.find(f"llada-8b-instruct/{name}")[0].entry.run.decoding["cache"] == "dual"
    for length in ("", ".256", ".512"):
        run = recipes.find(f"llada-8b-base/gsm8k{length}")[0].entry.run
        assert run.num_fewshot is None and run.shots == 5, "the authors' command names none: lm-eval's own 5"
    guided = recipes.find("llada-8b-base/winogrande.cfg")[0].entry
    assert guided.published.value == 74.8 and guided.run.likelihood["cfg_scale"] == 0.0
    assert [value(f"llada-8b-instruct/{bench}.semi-ar-paper") for bench in ("gsm8k", "math")] == [78.6, 42.2]


@pytest.mark.parametrize("group", by_source(), ids=lambda group: group[0].text())
def test_every_score_of_a_source_has_a_recipe_or_a_reason(group):
    source, table, result = group
    assert result or table.left_out, f"{source.text()} is named by no recipe"
    if table.scores is None:
        assert source.seen == "quoted", "a table that was read has a count"
    else:
        assert len(result) + sum(left.scores for left in table.left_out) == table.scores


def test_every_source_says_how_many_scores_its_table_has():
    shared = recipes.shared_facts(Path(registry().get("recipe", "llada-1.5").target).parent / "shared")
    assert shared["tables"].keys() == shared["sources"].keys()


def test_the_document_has_each_recipe_once():
    text = markdown()
    assert all(text.count(f"| `{name}` |") == 1 for name in recipes.names())


def test_a_source_whose_scores_all_lack_a_recipe_has_reasons_and_no_empty_table():
    section = markdown().partition(": table 5, zero-shot perplexities\n")[2].partition("\n## ")[0]
    assert "14 scores: 0 with a recipe, 14 without." in section and "| recipe |" not in section
    assert "Without a recipe (the LAMBADA tasks" in section and "Lambada of MDLM 48.29" in section


def test_ls_recipes_prints_the_document_and_nothing_beside_it():
    import typer

    from dare_bench.cli.ls import recipes as command
    from dare_bench.errors import UsageError

    app = typer.Typer()
    app.command()(command)
    assert CliRunner().invoke(app, ["--markdown"], catch_exceptions=False).stdout == markdown()
    with pytest.raises(UsageError, match="omit the checkpoint and --json"):
        CliRunner().invoke(app, ["llada-1.5", "--markdown"], catch_exceptions=False)


# -- Tables of further models, typed a second time as their sources have them ------------------------------------------


A2D = "gsm8k bbh math mmlu mmlu-pro hellaswag humaneval mbpp"
CODE = "humaneval humaneval.10 humaneval-plus humaneval-plus.10 mbpp mbpp.10 mbpp-plus mbpp-plus.10"
INFILL = "humaneval-infill humaneval-infill.oracle santacoder-fim santacoder-fim.oracle"
V2 = "humaneval humaneval-plus mbpp mbpp-plus gsm8k math ifeval mmlu gpqa"
TRADO = "math500.static math500.dynamic aime24.static aime24.dynamic gsm8k.static gsm8k.dynamic"
D3LLM = "gsm8k math mbpp humaneval long-gsm8k"
TABLES = [
    ("qwen3-0.6b-diffusion-mdlm", A2D, "29.3 26.7 8.7 40.0 17.3 42.1 30.5 29.2"),
    ("qwen3-0.6b-diffusion-bd3lm", A2D, "46.3 26.6 12.9 39.1 13.8 39.3 46.3 38.2"),
    ("qwen2.5-coder-0.5b-diffusion-mdlm", "humaneval mbpp", "28.1 23.0"),
    ("qwen2.5-coder-0.5b-diffusion-bd3lm", "humaneval mbpp", "39.0 33.2"),
    ("open-dcoder-0.5b", CODE, "20.8 38.4 17.6 35.2 16.7 38.4 23.9 53.6"),
    ("open-dcoder-0.5b", INFILL, "32.5 77.4 29.6 56.4"),
    ("illada-8b-base", "mmlu bbh arc-c hellaswag gsm8k math humaneval mbpp", "74.8 71.3 60.8 76.6 81.9 38.4 50.0 57.8"),
    ("illada-8b-instruct", "mmlu mmlu-pro mmlu-redux", "71.6 52.3 76.4"),
    ("fast-dllm-v2-1.5b", V2, "43.9 40.2 50.0 41.3 62.0 38.1 47.0 55.1 27.7"),
    ("fast-dllm-v2-7b", V2, "63.4 58.5 63.0 52.3 83.7 61.6 61.4 66.6 31.9"),
    ("trado-4b-instruct", TRADO, "75.6 71.8 8.3 10.3 91.2 90.3"),
    ("trado-8b-instruct", TRADO, "78.5 75.5 13.3 11.0 92.3 91.2"),
    ("trado-8b-thinking", "math500 aime24 gsm8k", "87.4 35.5 94.2"),
    ("dream-coder-7b-instruct", "humaneval mbpp evalplus livecodebench", "82.9 79.6 73.1 21.4"),
    ("diffucoder-7b-cpgrpo", "humaneval mbpp evalplus livecodebench", "73.2 78.6 67.9 10.3"),
    ("dreamon-7b", "humaneval-infill.single-line humaneval-infill.multi-line santacoder-fim", "92.1 63.8 79.0"),
    ("d3llm-llada", D3LLM, "74.02 32.76 42.0 39.8 78.32"),
    ("d3llm-dream", D3LLM, "83.47 39.38 58.8 58.86 81.2"),
    ("llada2.2-flash", "swe-bench-verified tau2-bench gpqa olympiadbench", "49.28 80.33 48.67 74.48"),
]

REPORT_20 = "gaokao scibench phybench triviaqa bbeh musr zebralogic ocnli drop squad2 humaneval-cn gsm-plus"
REPORT_21 = "phybench triviaqa bbeh musr zebralogic piqa ocnli drop squad2 gsm-plus"
REPORTS = [  # further benchmarks of the reports of LLaDA2.0 and LLaDA2.1
    ("llada2.0-mini", "report-2.0", "84.30 3.53 11.70 51.33 16.47 71.48 64.20 64.51 81.91 86.50 78.66 86.24"),
    ("llada2.0-flash", "report-2.0", "93.90 4.13 30.06 66.88 27.86 80.48 82.30 71.63 87.90 90.00 89.02 89.64"),
    ("llada2.0-mini", "report", "11.70 51.33 16.47 71.48 64.20 86.51 64.51 81.91 86.50 86.50"),
    ("llada2.1-mini", "speed", "12.75 53.33 15.30 70.43 68.50 84.87 61.02 81.55 84.51 85.88"),
    ("llada2.1-mini", "quality", "13.05 54.24 15.78 71.89 77.10 86.89 61.59 82.37 85.13 86.55"),
    ("llada2.0-flash", "report", "30.06 66.88 27.86 80.48 82.30 92.76 71.63 87.90 90.00 89.74"),
    ("llada2.1-flash", "speed", "26.04 72.55 33.51 80.10 84.20 92.44 72.17 87.55 90.65 89.23"),
    ("llada2.1-flash", "quality", "28.23 72.93 35.77 79.84 88.90 92.17 72.75 87.86 90.80 89.69"),
]


@pytest.mark.parametrize(("checkpoint", "column", "values"), REPORTS)
def test_what_a_harness_asks_too_of_the_reports_of_llada2(checkpoint, column, values):
    benches = REPORT_20 if column == "report-2.0" else REPORT_21
    published = [recipes.find(f"{checkpoint}/{bench}.{column}")[0].entry.published for bench in benches.split()]
    assert [score.value for score in published] == [float(value) for value in values.split()]
    tables = {"llada2.0-mini/report-2.0": "2512.15745", "llada2.0-flash/report-2.0": "2512.15745"}
    assert {score.source.paper for score in published} == {tables.get(f"{checkpoint}/{column}", "2602.08676")}


@pytest.mark.parametrize(("checkpoint", "benches", "values"), TABLES)
def test_a_table_is_whole(checkpoint, benches, values):
    published = [recipes.find(f"{checkpoint}/{bench}")[0].entry.published for bench in benches.split()]
    assert [score.value for score in published] == [float(value) for value in values.split()]
    assert {score.unit for score in published} == {"percent"}


def test_the_a2d_samplers_differ_in_blocks_and_worked_examples():
    for bench in A2D.split():
        mdlm, bd3lm = (recipes.find(f"qwen3-0.6b-diffusion-{kind}/{bench}")[0].entry.run for kind in ("mdlm", "bd3lm"))
        assert mdlm.decoding["block_length"] == mdlm.decoding["gen_length"], "one block"
        assert bd3lm.decoding == {**mdlm.decoding, "block_length": 32} and mdlm.tasks == bd3lm.tasks
        assert (mdlm.shots, bd3lm.shots) == ((5, 0) if bench == "gsm8k" else (3, 3) if bench == "bbh" else (0, 0))
