"""Tables of further models, typed a second time as their sources have them."""

from __future__ import annotations

import pytest

from dare_bench import recipes

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
