"""OpenCompass's own data sets as a task source, on a few rows of real data, without the network."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from require import need_package
from toy_model import ToyModel

from dare_bench.config import run_spec
from dare_bench.errors import DataError, UnknownNameError, UsageError
from dare_bench.harness.opencompass.prompts import split_shared
from dare_bench.harness.opencompass.source import OpenCompassSource
from dare_bench.protocols import HarnessResult
from dare_bench.types import Request, Sample

need_package("opencompass")
BENCH = ROOT / "tests" / "data" / "bench"


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of this test's own, an empty working folder, and no way out."""

    def refuse(host: Any, *_: Any, **__: Any) -> Any:
        raise OSError(f"the test has no network, not even for {host!r}")

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.delenv("COMPASS_DATA_CACHE", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert list((tmp_path / "here").iterdir()) == []


def make(tasks: str, model: ToyModel | None = None, **fields: Any) -> OpenCompassSource:
    given = {"model": "toy", "harness": "opencompass", "tasks": tasks, "data_dir": str(BENCH), **fields}
    return OpenCompassSource(run_spec(**given), model or ToyModel(context_limit=1 << 20))


def run(source: OpenCompassSource, fail_on: Callable[[Request], bool] = lambda request: False) -> HarnessResult:
    def answer(requests: Any) -> list[Sample]:
        samples: dict[str, Sample] = {}
        for kind, work in (("generate", source.model.generate), ("score", source.model.score)):
            for sample in work([r for r in requests if r.kind == kind]):
                source.watch(sample)
                samples[sample.request.key] = sample
        return [Sample(r, None, "too long") if fail_on(r) else samples[r.key] for r in requests]

    return source.run(answer)


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BENCH / name).read_text().splitlines()]


def test_generate_requests_have_the_configs_prompt_and_settings() -> None:
    source = make("gsm8k_gen", decoding={"steps": 8})
    requests = source.requests()
    questions = [row["question"] for row in rows("gsm8k/test.jsonl")]
    assert [r.doc_id for r in requests] == list(range(len(questions)))
    assert all(r.kind == "generate" and r.task == "gsm8k" for r in requests)
    assert all(isinstance(r.prompt, str) for r in requests)
    assert all(
        str(r.prompt).endswith(f"Question: {q}\nLet's think step by step\nAnswer:")
        for r, q in zip(requests, questions, strict=True)
    )
    assert requests[0].decoding == {"gen_length": 512, "steps": 8}  # 512 is the config's max_out_len
    assert make("gsm8k_gen", decoding={"gen_length": 32}).requests()[0].decoding["gen_length"] == 32
    assert len({r.seed for r in requests}) == len(requests)


def test_chat_gives_messages_and_the_system_instruction_goes_in_front() -> None:
    prompt: Any = make("gsm8k_gen", apply_chat_template=True, system_instruction="Be brief.").requests()[0].prompt
    assert [turn["role"] for turn in prompt] == ["system", *["user", "assistant"] * 4, "user"]
    assert prompt[0]["content"] == "Be brief."
    assert prompt[-1]["content"].startswith(f"Question: {rows('gsm8k/test.jsonl')[0]['question']}")


def test_shots_are_the_same_under_a_limit() -> None:
    whole = make("mmlu_gen_a484b3:*anatomy").requests()
    assert make("mmlu_gen_a484b3:*anatomy", limit=1).requests() == whole[:1]
    assert str(whole[0].prompt).count("A. ") == 1 + min(5, len(rows("mmlu/anatomy/dev.jsonl")))


def test_texts_are_compared_behind_what_they_share() -> None:
    requests = make("hellaswag_ppl", limit=1).requests()
    assert [r.kind for r in requests] == ["score"] * 4
    assert len({str(r.prompt) for r in requests}) == 1
    assert len({r.seed for r in requests}) == 1  # the choices share their random numbers
    endings = [ending.strip() for ending in rows("hellaswag/validation.jsonl")[0]["endings"]]
    assert [str(r.target).strip() for r in requests] == endings


def test_the_likeliest_label_is_that_of_the_lowest_cost_a_token() -> None:
    model = ToyModel(context_limit=1 << 20)
    result = run(make("hellaswag_ppl", model))
    for row, document in zip(result.samples["hellaswag"], rows("hellaswag/validation.jsonl"), strict=True):
        values = [float(results_found[0][0]) for results_found in row["resps"]]
        lengths = [len(model.encode(target)) for _, target in row["arguments"]]
        costs = [-value / length for value, length in zip(values, lengths, strict=True)]
        assert list(row["nll_per_token"].values()) == costs
        assert row["filtered_resps"] == [str(costs.index(min(costs)))]
        assert row["accuracy"] == float(costs.index(min(costs)) == int(document["label"]))


@pytest.mark.parametrize(
    ("texts", "context", "rests"),
    [
        (["Q: x\nA: yes", "Q: x\nA: no"], "Q: x\nA:", [" yes", " no"]),
        (["one apple", "one apricot"], "one", [" apple", " apricot"]),  # no word is cut in two
        (["He ran", "He ran home"], "He", [" ran", " ran home"]),  # no rest is empty
        (["答案：甲。", "答案：乙。"], "答案：", ["甲。", "乙。"]),
        (["the cat sat there", "the dog sat there"], "the", [" cat sat there", " dog sat there"]),
        (["A b", "C d"], "", ["A b", "C d"]),
        (["same", "same"], "", ["same", "same"]),
        (["17", "18"], "", ["17", "18"]),
    ],
)
def test_split_shared(texts: list[str], context: str, rests: list[str]) -> None:
    assert split_shared(texts) == (context, rests)
    assert [context + rest for rest in rests] == texts


def test_scores_rows_and_details() -> None:
    numbers = [row["answer"].split("#### ")[1] for row in rows("gsm8k/test.jsonl")]
    model = ToyModel(
        reply=lambda r: f"so {numbers[int(r.doc_id)] if int(r.doc_id) % 2 == 0 else -1}", context_limit=1 << 20
    )
    result = run(make("gsm8k_gen", model))
    assert len(numbers) == 4
    assert result.results["results"]["gsm8k"]["accuracy,none"] == 0.5
    assert math.isclose(result.results["results"]["gsm8k"]["accuracy_stderr,none"], math.sqrt(1 / 3) / 2)
    assert result.results["opencompass"]["gsm8k"] == {"accuracy": 50.0}
    assert result.results["n-samples"]["gsm8k"] == {"original": 4, "effective": 4}
    assert result.results["higher_is_better"]["gsm8k"] == {"accuracy": True}
    assert [row["accuracy"] for row in result.samples["gsm8k"]] == [1.0, 0.0, 1.0, 0.0]
    row = result.samples["gsm8k"][0]
    assert row["resps"] == [[f"so {numbers[0]}"]] and row["filtered_resps"] == [numbers[0]]
    assert row["target"] == numbers[0] and row["filter"] == "none" and row["metrics"] == ["accuracy"]
    assert row["doc"]["question"] == rows("gsm8k/test.jsonl")[0]["question"]
    assert row["_answers"] == [{"extracted": numbers[0], "extraction": "matched"}]
    assert result.extraction == {"gsm8k": {"none": {"matched": 4}}}
    json.dumps([result.results, result.samples])


def test_a_config_of_several_data_sets_is_a_group() -> None:
    model = ToyModel(reply=lambda r: "So the answer is True." if "boolean" in r.task else "?", context_limit=1 << 20)
    result = run(make("bbh_gen:bbh-[bn]*", model))
    group = "bbh_gen:bbh-[bn]*"
    members = ["bbh-navigate", "bbh-boolean_expressions"]
    assert sorted(result.results["group_subtasks"][group]) == sorted(members)
    scores = [result.results["results"][name]["score,none"] for name in members]
    assert scores[0] == 0.0 < scores[1]
    assert math.isclose(result.results["groups"][group]["score,none"], sum(scores) / 2)
    assert result.results["results"][group] == result.results["groups"][group]


def test_several_words_of_one_config_are_one_group() -> None:
    words = "bbh_gen:bbh-navigate,bbh_gen:bbh-boolean*"
    result = run(make(f"{words},gsm8k_gen"))
    assert result.results["group_subtasks"] == {
        "bbh_gen:bbh-navigate+bbh-boolean*": ["bbh-navigate", "bbh-boolean_expressions"]
    }
    with pytest.raises(UsageError) as caught:
        make("bbh_gen:bbh-navigate,bbh_gen:bbh-nav*")
    reported = "bbh_gen:bbh-navigate and bbh_gen:bbh-nav* both hold a data set 'bbh-navigate': name it once"
    assert str(caught.value) == reported


def test_a_document_without_an_answer_is_left_out_and_listed() -> None:
    numbers = [row["answer"].split("#### ")[1] for row in rows("gsm8k/test.jsonl")]
    model = ToyModel(reply=lambda r: numbers[int(r.doc_id)], context_limit=1 << 20)
    result = run(make("gsm8k_gen,ARC_c_ppl", model), lambda r: r.task == "ARC-c" or r.doc_id == 1)
    assert result.results["results"]["gsm8k"]["accuracy,none"] == 1.0
    assert result.results["n-samples"]["gsm8k"] == {"original": 4, "effective": 3}
    assert {"task": "gsm8k", "doc_id": 1, "error": "too long"} in result.failures
    assert [row["doc_id"] for row in result.samples["gsm8k"]] == [0, 2, 3]
    assert "ARC-c" not in result.results["results"]
    assert any("'ARC-c' has no score" in note for note in result.notes)
    assert set(result.fingerprints) == {"gsm8k", "ARC-c"}


def test_repeats_are_asked_with_keys_of_their_own_and_scored_together() -> None:
    numbers = [row["answer"].split("#### ")[1] for row in rows("gsm8k/test.jsonl")]
    model = ToyModel(reply=lambda r: numbers[int(r.doc_id)] if r.repeat == 0 else "0", context_limit=1 << 20)
    source = make("gsm8k_gen,ARC_c_ppl", model, repeats=2, limit=2)
    requested = [r for r in source.requests() if r.task == "gsm8k"]
    assert [(r.doc_id, r.repeat) for r in requested] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({r.seed for r in requested}) == 4
    assert {r.repeat for r in source.requests() if r.task == "ARC-c"} == {0}
    result = run(source)
    assert [note for note in result.notes if "--repeats" in note] == [
        "data set 'ARC-c' compares texts, which is done once: --repeats 2 is ignored"
    ]
    row = result.results["results"]["gsm8k"]
    assert row["accuracy,none"] == 0.5 and row["pass@2,none"] == 1.0


def test_a_configs_own_repeats_are_asked_that_often(tmp_path: Path) -> None:
    config = tmp_path / "twice_gen.py"
    config.write_text(
        "from mmengine.config import read_base\n"
        "with read_base():\n    from opencompass.configs.datasets.gsm8k.gsm8k_gen import gsm8k_datasets\n"
        "gsm8k_datasets[0]['n'] = 2\n"
    )
    source = make("twice_gen", include_path=str(tmp_path), limit=2)
    assert [(r.doc_id, r.repeat) for r in source.requests()] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert run(source).results["n-samples"]["gsm8k"] == {"original": 4, "effective": 2}
    assert len(make("twice_gen", include_path=str(tmp_path), limit=1, repeats=3).requests()) == 3


def test_samples_names_documents() -> None:
    result = run(make("gsm8k_gen", samples={"gsm8k": [3, 1]}))
    assert [row["doc_id"] for row in result.samples["gsm8k"]] == [1, 3]
    with pytest.raises(UsageError, match=r"document 4 .*documents 0 to 3"):
        make("gsm8k_gen", samples={"gsm8k": [4]}).requests()
    with pytest.raises(UnknownNameError, match="gsm8k"):
        make("gsm8k_gen", samples={"gsm9k": [0]}).requests()


def test_fingerprints_do_not_say_where_data_lay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = run(make("gsm8k_gen")).fingerprints["gsm8k"]
    folder = tmp_path / "own" / "data" / "gsm8k"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text((BENCH / "gsm8k" / f"{split}.jsonl").read_text())
    monkeypatch.setenv("COMPASS_DATA_CACHE", str(tmp_path / "own"))
    own = run(make("gsm8k_gen", data_dir=None))
    assert own.fingerprints["gsm8k"] == there
    assert own.data == {"gsm8k": str(folder)} != run(make("gsm8k_gen")).data == {"gsm8k": str(BENCH / "manifest.json")}
    fewer = run(make("gsm8k_gen", limit=2)).fingerprints["gsm8k"]
    assert fewer.split(":")[0] == there.split(":")[0] and fewer != there
    assert run(make("gsm8k_gen", apply_chat_template=True)).fingerprints["gsm8k"].split(":")[1] != there.split(":")[1]
    assert run(make("gsm8k_0shot_gen_a58960")).fingerprints["gsm8k"].split(":")[0] != there.split(":")[0]


def test_data_that_is_nowhere_is_one_line() -> None:
    with pytest.raises(DataError, match="--data-dir") as caught:
        make("gsm8k_gen", data_dir=None).requests()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tasks", "fields", "message"),
    [
        ("gsm8k_gen", {"data_dir": None}, "data/gsm8k is missing"),
        (
            "gpqa_fewshot_gen",
            {},
            r"accept its terms .* download .* \./data/gpqa/gpqa_diamond\.csv .*COMPASS_DATA_CACHE",
        ),
        ("mmlu_gen_a484b3:*clinical_knowledge", {}, "data/mmlu is missing; .* has a different part"),
        ("gsm8k_gen,ceval_gen:*accountant", {}, "lacks it: .*ceval/ceval-exam"),
        (
            "bbh_gen",
            {},
            r"; 2 of its config's data sets are here: --harness opencompass --tasks 'bbh_gen:bbh-\w+,bbh_gen",
        ),
        (
            "mmlu_gen_a484b3",
            {"recipe": "llada/mmlu"},
            r"--tasks 'mmlu_gen_a484b3:lukaemon_mmlu_\w+' in place of --recipe",
        ),
    ],
)
def test_missing_data_is_told_before_a_model_is_opened(tasks: str, fields: dict[str, Any], message: str) -> None:
    given = {"data_dir": str(BENCH), **fields}
    with pytest.raises(DataError, match=message) as caught:
        OpenCompassSource.check(run_spec(model="toy", harness="opencompass", tasks=tasks, **given))
    assert "\n" not in str(caught.value)


def test_data_that_is_there_or_that_opencompass_may_fetch_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = (
        "gsm8k_gen,ARC_c_gen,bbh_gen:bbh-navigate,hellaswag_ppl,mbpp_plus_gen,humaneval_gen,mmlu_gen_a484b3:*anatomy"
    )
    spec = run_spec(model="toy", harness="opencompass", tasks=tasks, data_dir=str(BENCH), unsafe_no_sandbox=True)
    OpenCompassSource.check(spec)
    monkeypatch.setenv("COMPASS_DATA_CACHE", str(tmp_path))
    OpenCompassSource.check(run_spec(model="toy", harness="opencompass", tasks="gsm8k_gen"))


@pytest.mark.parametrize(
    ("tasks", "fields", "message"),
    [
        ("gsm8k_gen", {"num_fewshot": 2}, "num-fewshot 2"),
        ("gsm8k_gen", {"likelihood": {"estimator": "adaptive"}}, "compares choices per token"),
        ("gsm8k_gen", {"fewshot_as_multiturn": False}, "fewshot-as-multiturn"),
        ("gsm8k_gen", {"system_instruction": "x"}, "apply-chat-template"),
        ("gsm8k_gen", {"apply_chat_template": "tools"}, "tools"),
        ("hellaswag_ppl", {"apply_chat_template": True}, "PPL"),
        ("hellaswag_ppl", {"engine": "openai"}, "'hellaswag' needs log-likelihoods, which engine openai does not"),
        ("gsm8k_gen,gsm8k_0shot_gen_a58960", {}, "'gsm8k': run them apart"),
        ("gsm8k_gin", {}, "gsm8k_gen"),
        ("gsm8k_gen:nope", {}, "none of its 1 data sets is 'nope'; known: gsm8k"),
        ("nowhere/x.py", {}, "no such config file"),
        ("gsm8k_gen", {"include_path": "nowhere"}, "no such folder"),
        ("math_500_llmjudge_gen_6ff468", {}, "judge"),
    ],
)
def test_check_refuses_before_a_model_is_opened(tasks: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        OpenCompassSource.check(run_spec(model="toy", harness="opencompass", tasks=tasks, **fields))
    assert "\n" not in str(caught.value)


def test_sentences_need_nltks_model(monkeypatch: pytest.MonkeyPatch) -> None:
    nltk = need_package("nltk")

    def not_installed(resource: str) -> str:
        raise LookupError(resource)

    spec = run_spec(model="toy", harness="opencompass", tasks="IFEval_gen", data_dir=str(BENCH))
    monkeypatch.setattr(nltk.data, "find", not_installed)
    with pytest.raises(UsageError, match=r"nltk\.downloader punkt_tab"):
        OpenCompassSource.check(spec)
    monkeypatch.setattr(nltk.data, "find", lambda resource: resource)
    OpenCompassSource.check(spec)


def test_it_says_nothing_on_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    run(make("gsm8k_gen,mmlu_gen_a484b3:*anatomy", limit=1))
    assert capfd.readouterr() == ("", "")
