"""The status of real-looking responses, held against what the harnesses themselves make of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from require import need_package

from dare_bench.harness.common.extraction_status import NOTHING, is_nothing, status_of, tally
from dare_bench.harness.lm_eval.extraction import annotate, of_lm_eval, unread
from dare_bench.harness.opencompass.result_tables import REPORTING, of_opencompass
from dare_bench.runs.scores import extraction_rate as rate

GSM8K = (
    "Natalia sold 48/2 = 24 clips in May.\nAltogether she sold 48+24 = 72 clips in April and May.\n#### 72",
    "Natalia sold 24 clips in May, so she sold 72 clips in total. The answer is 72.",
    "First #### 24\nThen she adds 48.\n#### 72",
    "She sold 48 clips, then half as many, which is 48/2 =",
    "I cannot tell.",
    "#### 72.\nStep 2 of 3",
    "72",
    "#### 1,072",
    "The total is \\boxed{72}, that is 72.0",
)


@cache
def lm_eval_task(path: str) -> Any:
    """A task of lm-eval with its real filters and scorer, and without its data."""
    need_package("lm_eval")
    import lm_eval
    from lm_eval.filters import build_filter_ensemble
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(Path(lm_eval.__file__).parent / "tasks" / path, resolve_func=True)
    pipelines = config.get("filter_list") or [{"name": "none", "filter": [{"function": "take_first"}]}]
    filters = [
        build_filter_ensemble(
            p["name"], [(f["function"], {k: v for k, v in f.items() if k != "function"}) for f in p["filter"]]
        )
        for p in pipelines
    ]
    config = SimpleNamespace(process_results=config.get("process_results"), filter_list=pipelines)
    return SimpleNamespace(OUTPUT_TYPE="generate_until", config=config, _filters=filters)


def filtered(task: Any, name: str, response: str, doc: Any = None) -> Any:
    """What lm-eval's pipeline makes of a response."""
    instance = SimpleNamespace(resps=[response], doc=doc, filtered_resps={})
    next(f for f in task._filters if f.name == name).apply([instance])
    return instance.filtered_resps[name]


def said(path: str, name: str, response: str, finish: str = "eos", doc: Any = None) -> tuple[Any, Any]:
    """(what lm-eval takes, the status)."""
    task = lm_eval_task(path)
    taken = filtered(task, name, response, doc)
    return taken, of_lm_eval(task, name, response, taken, finish)


@pytest.mark.parametrize(
    ("response", "strict", "flexible"),
    zip(
        GSM8K,
        [
            ("72", "matched"),
            ("[invalid]", "no_match"),
            ("24", "ambiguous"),
            ("[invalid]", "no_match"),
            ("[invalid]", "no_match"),
            ("72.", "matched"),
            ("[invalid]", "no_match"),
            ("1,072", "matched"),
            ("[invalid]", "no_match"),
        ],
        [
            ("72", "matched"),
            ("72.", "matched"),
            ("72", "matched"),
            ("2", "matched"),
            ("[invalid]", "no_match"),
            ("3", "matched"),
            ("72", "matched"),
            ("1,072", "matched"),
            ("72.0", "matched"),
        ],
        strict=True,
    ),
)
def test_gsm8k(response: str, strict: tuple[str, str], flexible: tuple[str, str]) -> None:
    assert said("gsm8k/gsm8k.yaml", "strict-match", response) == strict
    assert said("gsm8k/gsm8k.yaml", "flexible-extract", response) == flexible


def test_a_response_that_was_cut_before_its_answer_is_truncated() -> None:
    cut = "She sold 48 clips, then half as many, which is 48/2 ="
    assert said("gsm8k/gsm8k.yaml", "strict-match", cut, "length")[1] == "truncated"
    assert said("gsm8k/gsm8k.yaml", "flexible-extract", cut, "length") == ("2", "matched")
    assert said("gsm8k/gsm8k.yaml", "flexible-extract", "She sold", "length") == ("[invalid]", "truncated")
    assert said("gsm8k/gsm8k.yaml", "flexible-extract", GSM8K[0], "length") == ("72", "matched")
    assert said("gsm8k/gsm8k.yaml", "strict-match", GSM8K[0], "length") == ("72", "matched")
    assert said("gsm8k/gsm8k.yaml", "strict-match", cut, "stop")[1] == "no_match"


@pytest.mark.parametrize(
    ("response", "taken", "status"),
    [
        ("Let's think. The answer is (F).", "F", "matched"),
        ("The answer is C because D is wrong.", "C", "matched"),
        ("At first the answer is (A). No: the answer is (J).", "A", "ambiguous"),
        ("So the best choice is F.", "[invalid]", "no_match"),
        ("", "[invalid]", "no_match"),
    ],
)
def test_mmlu_pro(response: str, taken: str, status: str) -> None:
    assert said("mmlu_pro/mmlu_pro_biology.yaml", "custom-extract", response) == (taken, status)


@pytest.mark.parametrize(
    ("path", "name", "response", "taken", "status"),
    [
        (
            "bbh/cot_fewshot/navigate.yaml",
            "get-answer",
            "We end where we began. So the answer is Yes.",
            "Yes",
            "matched",
        ),
        ("bbh/cot_fewshot/navigate.yaml", "get-answer", "Yes.", "[invalid]", "no_match"),
        ("bbh/zeroshot/navigate.yaml", "flexible-extract", "No, or yes? Yes", None, "ambiguous"),
        ("bbh/zeroshot/navigate.yaml", "flexible-extract", "Yes", None, "matched"),
        ("bbh/zeroshot/navigate.yaml", "strict-match", "Yes", "Yes", None),
        ("bbh/zeroshot/snarks.yaml", "flexible-extract", "(A) is sarcastic, (B) is not", "(A)", "ambiguous"),
        ("bbh/zeroshot/snarks.yaml", "flexible-extract", "The sarcastic one is (B)", "(B)", "matched"),
    ],
)
def test_bbh(path: str, name: str, response: str, taken: str | None, status: str | None) -> None:
    doc = {"input": "Which is sarcastic?\nOptions:\n(A) so good\n(B) too bad", "target": "(B)"}
    got, result = said(path, name, response, doc=doc)
    assert result == status
    assert taken is None or got == taken


DOC = {"problem": "p", "solution": "So $x=\\boxed{\\frac{1}{2}}$.", "answer": "\\frac{1}{2}"}
MINERVA = [
    ("We solve. Final Answer: The final answer is $\\frac{1}{2}$. I hope it is correct.", (1, 1)),
    ("We solve and get $\\boxed{\\frac{1}{2}}$.", (0, 1)),
    ("So $\\boxed{\\frac{1}{3}}$, no: $\\boxed{\\frac12}$", (0, 1)),
    ("We take $a = 3$ and then $b = 4$ and", (0, 0)),
    ("I do not know the answer.", (0, 0)),
    ("", (0, 0)),
]


@pytest.mark.parametrize(("response", "scores"), MINERVA)
def test_minerva(response: str, scores: tuple[int, int]) -> None:
    need_package("math_verify")
    task = lm_eval_task("minerva_math/minerva_math_algebra.yaml")
    assert of_lm_eval(task, "none", response, response, "eos") is None
    assert tuple(task.config.process_results(DOC, [response]).values()) == scores


@pytest.mark.parametrize(
    ("path", "response", "right"),
    [
        ("hendrycks_math/hendrycks_math_algebra.yaml", "It is $\\frac{1}{2}$.", 1),
        ("hendrycks_math/hendrycks_math_algebra.yaml", "If $x=3$ then\nit is $\\frac{1}{2}$.", 0),
        ("aime/aime24.yaml", "Either \\boxed{3} or \\boxed{\\frac{1}{2}}", 1),
        ("aime/aime24.yaml", "We count the\nways to choose", 0),
    ],
)
def test_of_scorers_that_read_the_response_themselves_nothing_is_said(path: str, response: str, right: int) -> None:
    task = lm_eval_task(path)
    assert of_lm_eval(task, "none", response, response, "eos") is None
    assert task.config.process_results(DOC, [response])["exact_match"] == right


def test_what_reads_no_answer_has_no_status() -> None:
    assert said("ifeval/ifeval.yaml", "none", "Some text") == ("Some text", None)
    path = "mmlu/generative/mmlu_anatomy.yaml"  # its pattern takes the first line, whatever stands there
    (name,) = (pipeline.name for pipeline in lm_eval_task(path)._filters)
    assert said(path, name, "I cannot tell\nwhich it is") == ("I cannot tell", None)
    choice = SimpleNamespace(OUTPUT_TYPE="multiple_choice", config=SimpleNamespace(process_results=None), _filters=[])
    assert of_lm_eval(choice, "none", "A", "A", None) is None


def test_counts_and_rate() -> None:
    answers = [{"extraction": status} for status in ("matched", "matched", "ambiguous", "no_match")]
    counts = tally({"gsm8k": [{"filter": "none", "_answers": [*answers, {}]}]})["gsm8k"]["none"]
    assert counts == {"matched": 2, "ambiguous": 1, "no_match": 1}
    assert rate(counts) == 0.75
    assert rate({"truncated": 4}) == 0.0
    assert rate({}) is None


def row(name: str, resps: list[list[str]], taken: list[Any], doc_id: int = 0) -> dict[str, Any]:
    return {"doc_id": doc_id, "filter": name, "resps": resps, "filtered_resps": taken}


def test_rows_get_a_status_for_each_answer() -> None:
    task = lm_eval_task("gsm8k/gsm8k.yaml")
    cut = "48 and then"
    rows = [
        row("strict-match", [["#### 72"]], ["72"]),
        row("flexible-extract", [["#### 72"]], ["72"]),
        row("strict-match", [[cut]], ["[invalid]"], doc_id=7),
        row("strict-match", [["#### 5", "none"]], ["5"], doc_id=8),  # repeats of the task, the first one taken
        row("strict-match", [["#### 5", cut]], [["5", "[invalid]"]], doc_id=9),  # repeats, each one filtered
    ]
    requested = []

    def finish(name: str, doc: Any, instance: int, repeat: int) -> str:
        requested.append((name, doc, instance, repeat))
        return "length" if doc == 7 else "eos"

    annotate({"gsm8k": task}, {"gsm8k": rows, "other": []}, finish)
    assert tally({"gsm8k": rows, "other": []}) == {
        "gsm8k": {
            "strict-match": {"matched": 3, "truncated": 1, "no_match": 1},
            "flexible-extract": {"matched": 1},
        }
    }
    assert [r["_answers"] for r in rows] == [
        [{"extraction": "matched"}],
        [{"extraction": "matched"}],
        [{"extraction": "truncated"}],
        [{"extraction": "matched"}, {}],
        [{"extraction": "matched"}, {"extraction": "no_match"}],
    ]
    assert ("gsm8k", 9, 0, 1) in requested and unread({"gsm8k": task}, {"gsm8k": rows}) == []
    requested.clear()
    annotate({"gsm8k": task}, {"gsm8k": rows}, finish, part=3)
    assert set(requested) == {("gsm8k", *place) for place in [(0, 0, 3), (7, 0, 3), (8, 0, 6), (9, 0, 6), (9, 0, 7)]}


def test_a_metric_that_reads_less_than_the_other_is_noted() -> None:
    need_package("math_verify")
    task = lm_eval_task("minerva_math/minerva_math_algebra.yaml")
    rows = [row("none", [[response]], [response], doc_id=i) for i, (response, _) in enumerate(MINERVA)]
    annotate({"m": task}, {"m": rows}, lambda *place: "eos")
    notes = unread({"m": task}, {"m": rows})
    assert tally({"m": rows}) == {}
    assert len(notes) == 1 and "5 of 6 answers lack the phrase" in notes[0]


def test_equal_answers_are_one() -> None:
    assert status_of(["$1,000.", "1000", "**1000**"], None) == "matched"
    assert status_of(["b", "B."], "length") == "matched"
    assert status_of(["12", "12.5"], None) == "ambiguous"
    assert (status_of([], "length"), status_of([], "eos")) == ("truncated", "no_match")
    assert all(map(is_nothing, (*NOTHING, None, " "))) and not is_nothing("0")


# --- OpenCompass ------------------------------------------------------------------------------------------------------

OPENCOMPASS = [
    ("gsm8k/gsm8k_gen_1d7fe4", GSM8K[1], "eos", "72", "matched"),
    ("gsm8k/gsm8k_gen_1d7fe4", "Let me think", "eos", "NULL", "no_match"),
    ("gsm8k/gsm8k_gen_1d7fe4", "Let me think", "length", "NULL", "truncated"),
    ("gsm8k/gsm8k_gen_1d7fe4", "The answer is 72.\n(2 steps)", "eos", "2", "matched"),
    ("ARC_c/ARC_c_gen_1e0de5", "B", "eos", "B", "matched"),
    ("ARC_c/ARC_c_gen_1e0de5", "The answer is (C).", "eos", "C", "matched"),
    ("ARC_c/ARC_c_gen_1e0de5", "The answer is A. Wait, the answer is D.", "eos", "D", "matched"),
    ("ARC_c/ARC_c_gen_1e0de5", "Because of the sun", "eos", "B", "matched"),  # OpenCompass takes the word's capital
    ("ARC_c/ARC_c_gen_1e0de5", "", "length", "", "truncated"),
    ("mmlu/mmlu_gen_4d595a", "the correct answer is option: B", "eos", "B", "matched"),
    ("gpqa/gpqa_openai_simple_evals_gen_5aeece", "Answer: A\nAnswer: B", "eos", "A", "matched"),
    ("gpqa/gpqa_openai_simple_evals_gen_5aeece", "It is B", "eos", None, "no_match"),
    ("mmlu_pro/mmlu_pro_0shot_cot_gen_08c1de", "Thinking.\nANSWER: J", "eos", "J", "matched"),
    ("mmlu_pro/mmlu_pro_0shot_cot_gen_08c1de", "Thinking of J", "length", "", "truncated"),
    ("ceval/ceval_gen_5f30c7", "C", "eos", "C", "matched"),
    ("ceval/ceval_gen_5f30c7", "这道题我不会", "eos", "", "no_match"),
    # These give back the first sentence, the first line or the text where they find no answer.
    ("math/math_0shot_gen_393424", "Hence \\boxed{5}.", "eos", "5", None),
    ("math/math_0shot_gen_393424", "We start by expanding the square of the sum", "eos", None, None),
    ("bbh/bbh_gen_5b92b0", "We know. So the answer is (B).", "eos", "B", None),
    ("bbh/bbh_gen_5b92b0", "either way", "eos", "either way", None),
    ("humaneval/humaneval_gen_8e312c", "def f():\n    return 1", "eos", None, None),
    ("IFEval/IFEval_gen_3321a3", "Some text.", "eos", "Some text.", None),
]


@cache
def opencompass_set(name: str) -> Any:
    """A data set's configuration as OpenCompass ships it."""
    need_package("opencompass")
    import opencompass
    from mmengine.config import Config

    path = Path(opencompass.__file__).parent / "configs" / "datasets" / f"{name}.py"
    config = Config.fromfile(str(path), format_python_code=False)
    return next(value for key, value in config.items() if key.endswith("_datasets"))[0]


def postprocessed(cfg: Any, prediction: str) -> Any:
    """By OpenCompass's own postprocessor."""
    post = dict(cfg["eval_cfg"].get("pred_postprocessor") or {})
    if not post:
        return prediction
    from opencompass.registry import TEXT_POSTPROCESSORS

    kind = post.pop("type")
    function = TEXT_POSTPROCESSORS.get(kind) if isinstance(kind, str) else kind
    return function(prediction, **post)


@pytest.mark.parametrize(("name", "prediction", "finish", "taken", "status"), OPENCOMPASS)
def test_opencompass(name: str, prediction: str, finish: str, taken: str | None, status: str | None) -> None:
    cfg = opencompass_set(name)
    extracted = postprocessed(cfg, prediction)
    assert of_opencompass(cfg, prediction, extracted, finish) == status
    assert of_opencompass(cfg["eval_cfg"], prediction, extracted, finish) == status
    if taken is not None:
        assert extracted == taken


def test_the_postprocessors_with_a_status_report_that_they_find_nothing() -> None:
    """Fails when an OpenCompass has another list of them, or other values for it."""
    need_package("opencompass")
    import opencompass.datasets  # noqa: F401  (registers the postprocessors)
    from opencompass.registry import TEXT_POSTPROCESSORS
    from opencompass.utils import text_postprocessors

    known = {function.__name__: function for function in TEXT_POSTPROCESSORS.module_dict.values()}
    known |= {name: value for name, value in vars(text_postprocessors).items() if name in REPORTING}
    settings = {
        "first_option_postprocess": {"options": "ABCD"},
        "last_option_postprocess": {"options": "ABCD"},
        "match_answer_pattern": {"answer_pattern": "ANSWER: ([A-D])"},
        "xml_tag_postprocessor": {"tag": "<x>"},
    }
    for name in REPORTING:
        for text in ("~ no answer here ~", "~ one ~ 这道题我不会\n~ two ~", ""):
            assert is_nothing(known[name](text, **settings.get(name, {}))), name


@pytest.mark.parametrize("extracted", ["5", "It is 5", "it is 5", "", None])
def test_of_an_unknown_postprocessor_nothing_is_said(extracted: str | None) -> None:
    """Where it gives the text back it has found nothing or everything, so a share of the others says nothing."""
    cfg = {"eval_cfg": {"pred_postprocessor": {"type": "my_postprocess"}, "evaluator": {"type": "AccEvaluator"}}}
    assert of_opencompass(cfg, "It is 5", extracted, "eos") is None
