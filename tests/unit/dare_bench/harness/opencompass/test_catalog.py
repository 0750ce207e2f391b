"""OpenCompass's data-set configs by name, our five, and what is refused. The configs are the installed ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from require import need_package
from typer.testing import CliRunner

from dare_bench.cli import app
from dare_bench.errors import DareError, DataError, UnknownNameError, UsageError
from dare_bench.harness.opencompass.answers import first_stated_number
from dare_bench.harness.opencompass.catalog import OURS, Config, ConfigCatalog, opencompass_folder
from dare_bench.harness.opencompass.selection import why_not

need_package("opencompass")

OUR_FIVE = [
    "aime2024_gen_repeat8_6e39a4",
    "aime2025_gen_repeat8_5e9f4f",
    "gpqa_fewshot_gen",
    "gsm8k_gen_base",
    "humaneval_gen_base",
]
# What DARE's evaluation scripts name, and what its README's tables came from.
OF_DARE = [
    "ARC_c_gen",
    "OlympiadBench_0shot_gen_be8b13",
    "aime2024_gen",
    "bbh_gen",
    "gsm8k_0shot_v2_gen_a58960",
    "gsm8k_gen",
    "hellaswag_gen_6faab5",
    "humaneval_gen",
    "math_0shot_gen_11c4b5",
    "math_gen",
    "math_prm800k_500_0shot_cot_gen",
    "mbpp_gen",
    "mmlu_gen_a484b3",
    "mmlu_pro_gen_cdbebf",
    "sanitized_mbpp_gen_830460",
]
CONFIG = """
from opencompass.datasets import CustomDataset
from opencompass.openicl.icl_inferencer import GenInferencer
from opencompass.openicl.icl_retriever import ZeroRetriever
from opencompass.evaluator import GenericLLMEvaluator, MATHVerifyEvaluator

def made(abbr, evaluator, path="data/mine.jsonl"):
    infer = dict(retriever=dict(type=ZeroRetriever), inferencer=dict(type=GenInferencer))
    how = dict(evaluator=dict(type=evaluator))
    return dict(abbr=abbr, type=CustomDataset, path=path, infer_cfg=infer, eval_cfg=how)

mine_datasets = [%s]
"""


@pytest.fixture(scope="module")
def catalog() -> ConfigCatalog:
    return ConfigCatalog()


def named(catalog: ConfigCatalog, name: str) -> list[dict[str, object]]:
    (wanted,) = catalog.match([name])
    return catalog.load(wanted)


def written(folder: Path, name: str, *entries: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(CONFIG % ", ".join(entries))
    return path


def test_listing_names_imports_neither_opencompass_nor_torch() -> None:
    code = (
        "import sys; from dare_bench.cli import main; sys.argv = 'dare-bench ls tasks --harness opencompass'.split()\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('IMPORTED', [m for m in ('torch', 'opencompass', 'mmengine', 'lm_eval') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "IMPORTED []" in ran.stdout
    assert "  gsm8k_gen\n" in ran.stdout


def test_every_name_is_a_config_that_defines_data_sets(catalog: ConfigCatalog) -> None:
    names = catalog.entries
    assert {*OUR_FIVE, *OF_DARE} <= set(names)
    # Lists of subjects, prompts and settings are no configs.
    assert not {"mmlu_all_sets", "OlympiadBench_categories", "bbh_subset_settings", "mathbench_prompt"} & set(names)
    assert all(entry.path.is_file() for entry in catalog.entries.values())


def test_names_globs_and_paths_are_found_in_order_and_once(catalog: ConfigCatalog) -> None:
    result = catalog.match(["gsm8k_gen", "ARC_c_g*", "gsm8k_gen", "gsm8k/gsm8k_gen", "mmlu_gen:*anatomy"])
    assert [(wanted.name, wanted.only) for wanted in result] == [
        ("gsm8k_gen", None),
        ("ARC_c_gen", None),
        ("ARC_c_gen_1e0de5", None),
        ("mmlu_gen", "*anatomy"),
    ]
    path = opencompass_folder() / "gsm8k" / "gsm8k_gen.py"
    assert catalog.match([str(path)]) == [Config("gsm8k_gen", path)]


def test_an_unknown_name_says_the_three_closest(catalog: ConfigCatalog) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown OpenCompass config 'gsm8k_gn'; closest: gsm8k_gen, .+, .+"):
        catalog.match(["gsm8k_gn"])
    with pytest.raises(UnknownNameError, match="none of the"):
        catalog.match(["nothing_fits_*"])
    with pytest.raises(UsageError, match="no such config file"):
        catalog.match(["nowhere/config.py"])


def test_a_stem_that_two_files_share_names_both_and_takes_a_folder(catalog: ConfigCatalog) -> None:
    with pytest.raises(UnknownNameError) as raised:
        catalog.match(["mgsm_gen"])
    for part in ("PMMEval/mgsm_gen.py", "mgsm/mgsm_gen.py", "choose one: PMMEval/mgsm_gen or mgsm/mgsm_gen"):
        assert part in str(raised.value)
    (wanted,) = catalog.match(["PMMEval/mgsm_gen"])
    assert wanted.path.parent.name == "PMMEval"


def test_a_folder_of_the_user_comes_before_opencompass_and_the_last_folder_first(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, "gsm8k_gen", f"made('{name}', MATHVerifyEvaluator)")
    selected = ConfigCatalog([tmp_path / "one", tmp_path / "two"])
    assert [config["abbr"] for config in named(selected, "gsm8k_gen")] == ["two"]
    assert selected.entries["ARC_c_gen"].origin == "opencompass"
    with pytest.raises(UsageError, match="no such folder"):
        ConfigCatalog([tmp_path / "three"])


def test_data_sets_are_chosen_by_abbr(catalog: ConfigCatalog) -> None:
    assert len(named(catalog, "mmlu_gen_a484b3")) == 57
    (item,) = named(catalog, "mmlu_gen_a484b3:lukaemon_mmlu_anatomy")
    assert item["name"] == "anatomy"
    assert {str(c["abbr"]) for c in named(catalog, "bbh_gen:*logical_deduction*")} == {
        f"bbh-logical_deduction_{n}_objects" for n in ("three", "five", "seven")
    }
    with pytest.raises(UnknownNameError, match=r"none of its 57 data sets is 'anatomi'; closest: \S+"):
        named(catalog, "mmlu_gen_a484b3:anatomi")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x_datasets = [dict(abbr='a', n=nothing)]", "NameError: name 'nothing' is not defined"),
        ("x_datasets = [", "SyntaxError|invalid syntax|was never closed"),
        ("from opencompass.datasets import NoSuchDataset\nx_datasets = [dict(abbr='a', type=NoSuchDataset)]", "NoSuch"),
        ("x_datasets = [dict(abbr='a', path='1'), dict(abbr='a', path='2')]", "two different data sets of .* abbr 'a'"),
        ("x_datasets = []", "defines no data set"),
        ("x_datasets = ['a']", "must be a dictionary, not 'a'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys\nx_datasets = []\nsys.exit()", "SystemExit: no reason given"),
    ],
)
def test_a_config_that_cannot_be_loaded_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken_gen.py"
    path.write_text(text)
    catalog = ConfigCatalog()
    with pytest.raises(DataError, match=said) as raised:
        named(catalog, str(path))
    assert "broken_gen" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_data_set_listed_twice_is_taken_once_and_one_without_abbr_gets_opencompass_s(tmp_path: Path) -> None:
    path = tmp_path / "twice_gen.py"
    path.write_text("a_datasets = [dict(path='x/y', name='z')]\nb_datasets = [*a_datasets, dict(abbr='b', path='q')]")
    assert [config["abbr"] for config in named(ConfigCatalog(), str(path))] == ["x_y_z", "b"]


@pytest.mark.parametrize("name", OUR_FIVE)
def test_ours_load_and_can_be_run(catalog: ConfigCatalog, name: str) -> None:
    assert catalog.entries[name].origin == OURS
    (config,) = named(catalog, name)
    assert why_not(config) is None
    assert config.get("n", 1) == (8 if "repeat8" in name else 1)


def test_ours_load_in_opencompass_s_own_command_line() -> None:
    from opencompass.cli.main import parse_args
    from opencompass.utils.run import get_config_from_arg

    folder = str(Path(ConfigCatalog().entries["gsm8k_gen_base"].path).parents[1])
    before, sys.argv = sys.argv, ["opencompass", "--config-dir", folder, "--datasets", *OUR_FIVE, "--hf-path", "none"]
    try:
        config = get_config_from_arg(parse_args())
    finally:
        sys.argv = before
    assert len(config["datasets"]) == 5


def test_gpqa_reads_the_stated_letter_and_shows_five_answers(catalog: ConfigCatalog) -> None:
    (config,) = named(catalog, "gpqa_fewshot_gen")
    prompt = config["infer_cfg"]["prompt_template"]["template"]["round"][0]["prompt"]
    assert [line[-2] for line in prompt.splitlines() if line.startswith("The correct answer is")] == list("DABAC")
    assert all(prompt.count(f"{{{column}}}") == 1 for column in ("question", "A", "B", "C", "D"))
    how = dict(config["eval_cfg"]["pred_postprocessor"])
    read = how.pop("type")
    assert read("Both fit, but the Correct answer is (C). The correct answer is (A)", **how) == "C"
    assert read("C, I think", **how) == ""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("So 3 * 6 = 18.\nThe answer is 18\n\nQuestion: how many?\nThe answer is 7", "18"),
        ("the answer is: -2.5", "-2.5"),
        ("He has 4 and then 9 left.\nQuestion: 55?", "9"),
        ("I do not know", "NULL"),
    ],
)
def test_a_base_model_s_first_answer_counts(text: str, number: str) -> None:
    assert first_stated_number(text) == number


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aime2025_llmjudge_gen_5e9f4f", r"GenericLLMEvaluator judges .*; use aime2025_gen_repeat8_5e9f4f instead"),
        ("math_500_cascade_eval_gen_6ff468", r"CascadeEvaluator judges .*; use \S+ instead"),
        (
            "gsm8k_agent_gen_c3dff3",
            r"inferencer is AgentInferencer; run here: GenInferencer and .*use gsm8k_gen instead",
        ),
        ("winogrande_ll", r"inferencer is LLInferencer; .*use winogrande_\S+ instead"),
        ("humanevalx_gen:*python", r"HumanevalXEvaluator executes what the model wrote"),
        ("apps_gen", r"APPSEvaluator executes what the model wrote"),
        ("TheoremQA_5shot_gen_6f0af8", r"TheoremQAEvaluatorV3 runs Python's eval on the model's text"),
        (
            "triviaqa_gen_0356ec",
            r"TriviaQADataset runs Python's eval on the rows .*; use triviaqa_\S+ ",
        ),
        ("nq_gen_0356ec", r"NaturalQuestionDataset runs Python's eval on the rows of its data file"),
    ],
)
def test_what_cannot_be_run_says_why_and_what_to_take(catalog: ConfigCatalog, name: str, said: str) -> None:
    (wanted,) = catalog.match([name])
    reason = why_not(catalog.load(wanted)[0], wanted.path)
    assert reason is not None
    assert re.search(said, reason), reason
    assert "\n" not in reason
    if other := re.search(r"take (\S+) instead", reason):
        assert any(why_not(config) is None for config in named(catalog, other[1]))


@pytest.mark.parametrize(
    "name", [*OF_DARE, "ARC_c_ppl", "hellaswag_ppl", "ceval_gen", "IFEval_gen", "humaneval_plus_gen"]
)
def test_what_the_suite_needs_can_be_run(catalog: ConfigCatalog, name: str) -> None:
    assert [why_not(config) for config in named(catalog, name)] == [None] * len(named(catalog, name))


def test_a_user_s_judge_is_refused_without_running_the_user_s_other_files(tmp_path: Path) -> None:
    judged = written(tmp_path, "mine_judged", "made('judged', GenericLLMEvaluator)")
    other = written(tmp_path, "mine_gen", "made('ruled', MATHVerifyEvaluator)")
    other.write_text(f"open({str(tmp_path / 'was_run')!r}, 'w').close()\n{other.read_text()}")
    (config,) = named(ConfigCatalog([tmp_path]), "mine_judged")
    assert "by a second language model" in str(why_not(config, judged))
    assert "instead" not in str(why_not(config, judged)) and not (tmp_path / "was_run").exists()
    ours = {**config, "path": "./data/gpqa/", "name": "gpqa_diamond.csv"}
    assert str(why_not(ours, judged)).endswith("; use gpqa_fewshot_gen instead")
    assert why_not({"abbr": "a"}) == (
        "OpenCompass data set a: it has no inferencer; run here: GenInferencer and PPLInferencer"
    )


def test_ls_tasks_groups_by_folder_and_gives_json() -> None:
    shown = CliRunner().invoke(app, ["ls", "tasks", "--harness", "opencompass", "aime2025"])
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[:2] == ["dare-bench", "  aime2025_gen_repeat8_5e9f4f"]
    assert "opencompass: aime2025" in lines
    listed = CliRunner().invoke(app, ["ls", "tasks", "--harness", "opencompass", "gsm8k_gen_b*", "--json"])
    (row,) = json.loads(listed.stdout)
    assert (row["name"], row["origin"]) == ("gsm8k_gen_base", "dare-bench")
    for words in (["--harness", "opencompass", "gsk8"], ["--harness", "opencompas"]):
        failed = CliRunner().invoke(app, ["ls", "tasks", *words])
        assert isinstance(failed.exception, DareError | SystemExit)
        assert failed.exit_code != 0
