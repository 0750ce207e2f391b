"""lm-eval's tasks as a task source: requests, keys, settings, scores, and documents without an answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from toy_model import ToyModel
from toy_tasks import CHOICES, SUMS, answer_with, for_plain_lm_eval, write_data, write_tasks

from dare_bench import seeds
from dare_bench.config import run_spec
from dare_bench.errors import DataError, DecodingError, UnknownNameError, UsageError
from dare_bench.harness.lm_eval.source import LmEvalSource
from dare_bench.types import Request, Sample

Make = Callable[..., LmEvalSource]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    folder, data = write_tasks(tmp_path / "tasks"), write_data(tmp_path / "data")

    def source(tasks: str, model: ToyModel | None = None, **fields: Any) -> LmEvalSource:
        given = {"include_path": str(folder), "data_dir": str(data), **fields}
        return LmEvalSource(run_spec(model="toy", tasks=tasks, **given), model or ToyModel())

    return source


def solve(request: Request) -> str:
    """The right sum, except for 3 plus 4."""
    a, b = str(request.prompt).rsplit("Q:", 1)[-1].replace("is", "").replace("A:", "").split("plus")
    return " 0" if int(a) == 3 else f" {int(a) + int(b)} "


def test_requests_name_task_document_choice_and_repeat(make: Make) -> None:
    requests = make("toy_add,toy_choice,toy_twice").requests()
    by_task = {name: [r for r in requests if r.task == name] for name in ("toy_add", "toy_choice", "toy_twice")}
    assert [len(rows) for rows in by_task.values()] == [len(SUMS), 3 * len(CHOICES), 3 * len(SUMS)]
    assert len({r.key for r in requests}) == len(requests)
    first = by_task["toy_add"][0]
    assert (first.kind, first.prompt, first.target) == ("generate", "Q: 1 plus 2\nA:", None)
    assert first.decoding == {"gen_length": 16, "stop": ["Q:"], "temperature": 0.0}
    assert first.key.startswith("toy_add/0/0/0/") and len(first.key.rsplit("/", 1)[1]) == 8
    assert [r.key.rsplit("/", 1)[0] for r in by_task["toy_twice"][:4]] == [
        f"toy_twice/{doc}/0/{repeat}" for doc, repeat in [(0, 0), (0, 1), (0, 2), (1, 0)]
    ]
    assert [r.repeat for r in by_task["toy_twice"][:4]] == [0, 1, 2, 0]
    choice = by_task["toy_choice"][4]
    assert (choice.kind, choice.prompt, choice.target) == ("score", "colour 1?", " green")
    assert choice.key.startswith("toy_choice/1/1/0/")
    # Choices of a document share their draws, repeats do not.
    assert choice.seed == seeds.sample_key(1234, "toy_choice", 1, 0) == by_task["toy_choice"][3].seed
    assert len({r.seed for r in by_task["toy_twice"]}) == 3 * len(SUMS)


def test_a_metric_that_lm_eval_does_not_have_is_refused_before_any_answer(make: Make, tmp_path: Path) -> None:
    """Not by a TypeError after all answers: lm-eval logs that the metric was not found, and goes on."""
    text = "include: _base_yaml\ntask: toy_bleu\nmetric_list: [{metric: bleu, hf_evaluate: true}]\n"
    (tmp_path / "tasks" / "bleu.yaml").write_text(text)
    with pytest.raises(DataError, match="task 'toy_bleu': lm-eval has no metric 'bleu', and scripts of the evaluate"):
        make("toy_bleu").requests()


def test_scores_and_keys_are_lm_evals(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers given to lm-eval without us score the same, under the same names."""
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Plain(LM):  # type: ignore[misc]
        def generate_until(self, requests: list[Any]) -> list[str]:
            return [solve(Request("", "generate", r.args[0])) for r in requests]

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            return [(-float(len(r.args[1])), False) for r in requests]

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            raise AssertionError

    class Model(ToyModel):
        def _likelihood(self, request: Request) -> Any:
            result = super()._likelihood(request)
            result.value = -float(len(str(request.target)))
            return result

    ours = make("toy_group,toy_shots", Model(reply=solve)).run(answer_with(Model(reply=solve)))
    plain = for_plain_lm_eval(tmp_path / "plain", tmp_path / "data", monkeypatch)
    reference = simple_evaluate(
        model=Plain(),
        tasks=["toy_group", "toy_shots"],
        task_manager=TaskManager(include_path=str(plain), include_defaults=False),
        bootstrap_iters=1000,
    )
    assert reference is not None
    assert ours.results["results"] == reference["results"]
    assert ours.results["results"]["toy_add"]["exact_match,first-number"] == pytest.approx(5 / 6)
    machine = {"git_hash", "upper_git_hash", "pretty_env_info", "transformers_version", "lm_eval_version"}
    assert set(reference) - {"samples"} - machine <= set(ours.results)
    for name in ("groups", "group_subtasks", "versions", "n-shot", "higher_is_better", "n-samples"):
        assert ours.results[name] == reference[name], name
    assert set(ours.results["config"]) >= set(reference["config"])
    for task, rows in reference["samples"].items():
        assert [set(row) - {"_answers"} for row in ours.samples[task]] == [set(row) for row in rows]
        for row, other in zip(ours.samples[task], json.loads(json.dumps(rows)), strict=True):
            own = {k: v for k, v in row.items() if k not in ("doc", "_answers")}
            assert own == {k: v for k, v in other.items() if k != "doc"}


def test_results_name_the_data_set_and_never_where_it_lay(make: Make, tmp_path: Path) -> None:
    result = make("toy_group").run(answer_with(ToyModel(reply=solve)))
    configs = result.results["configs"]
    assert configs["toy_add"]["dataset_path"] == "toys/sums" and configs["toy_add"]["dataset_name"] == "small"
    assert configs["toy_group::toy_inline"]["dataset_path"] == "toys/sums"
    assert str(tmp_path / "data") not in str(result.results) + str(result.samples)
    assert "data set toys/choices is local and incomplete: five rows only" in result.notes


def test_fingerprints_follow_content_not_place(make: Make, tmp_path: Path) -> None:
    def prints(tasks: str = "toy_add,toy_choice", **fields: Any) -> dict[str, str]:
        return make(tasks, **fields).run(answer_with(ToyModel(reply=solve))).fingerprints

    first = prints()
    assert prints(data_dir=str(write_data(tmp_path / "moved", zipped=True))) == first
    moved = write_tasks(tmp_path / "moved_tasks")
    assert prints(include_path=str(moved)) == first
    short = prints(limit=2)
    assert short["toy_add"].split(":")[0] == first["toy_add"].split(":")[0]
    assert short["toy_add"] != first["toy_add"]
    assert prints(decoding={"gen_length": 4}) == first

    other = write_data(tmp_path / "other", sums=[{"question": "0 plus 0", "answer": "0"}, *SUMS[1:]])
    assert prints(data_dir=str(other))["toy_add"].split(":")[1] != first["toy_add"].split(":")[1]
    utils = moved / "utils.py"
    utils.write_text(utils.read_text() + "# another scorer\n")
    changed = prints(include_path=str(moved))
    assert changed["toy_choice"] != first["toy_choice"] and changed["toy_add"] == first["toy_add"]
    base = moved / "_base_yaml"
    base.write_text(base.read_text().replace("(-?", "(?:-?"))
    assert prints("toy_add", include_path=str(moved))["toy_add"].split(":")[0] != first["toy_add"].split(":")[0]


def test_failed_documents_are_left_out_and_named(make: Make) -> None:
    def fails(request: Request) -> bool | str:
        if request.task == "toy_choice":
            return request.doc_id == 3 and request.target == " green" and "no memory"
        return request.task == "toy_add" and request.doc_id in (0, 1)

    model = ToyModel(reply=solve, fail_on=fails)
    result = make("toy_group", model, limit=5).run(answer_with(model))
    assert result.failures == [
        {"task": "toy_add", "doc_id": 0, "error": "the toy was told to fail"},
        {"task": "toy_add", "doc_id": 1, "error": "the toy was told to fail"},
        {"task": "toy_choice", "doc_id": 3, "error": "no memory"},
    ]
    assert result.results["results"]["toy_add"]["exact_match,first-number"] == 1.0  # 3 plus 4 was document 1
    assert result.results["n-samples"]["toy_add"] == {"original": 6, "effective": 3}
    rows = [row for row in result.samples["toy_add"] if row["filter"] == "first-number"]
    assert [row["doc_id"] for row in rows] == [2, 3, 4]
    assert [row["doc"]["question"] for row in rows] == ["5 plus 6", "7 plus 8", "9 plus 10"]
    assert [row["doc_id"] for row in result.samples["toy_choice"]] == [0, 1, 2, 4]
    whole = make("toy_group", limit=5).run(answer_with(ToyModel(reply=solve)))
    assert result.fingerprints == whole.fingerprints, "an answer that is missing does not make it another task"


def test_failures_do_not_change_other_documents_prompts(make: Make) -> None:
    """Few-shot examples are drawn in the order of documents: a build without document 1 would draw others."""
    whole = make("toy_shots").run(answer_with(ToyModel()))
    model = ToyModel(fail_on=lambda request: request.doc_id == 1)
    source = make("toy_shots", model)
    part = source.run(answer_with(model))
    hashes = {row["doc_id"]: row["prompt_hash"] for row in whole.samples["toy_shots"]}
    assert {row["doc_id"]: row["prompt_hash"] for row in part.samples["toy_shots"]} == {
        doc: value for doc, value in hashes.items() if doc != 1
    }
    again = source.run(answer_with(ToyModel()))
    assert again.results["results"] == whole.results["results"] and again.samples == whole.samples


def test_a_task_without_any_answer_has_no_score(make: Make) -> None:
    model = ToyModel(reply=solve, fail_on=lambda request: request.task == "toy_choice")
    result = make("toy_group", model).run(answer_with(model))
    assert set(result.results["results"]) == {"toy_add", "toy_group::toy_inline", "toy_group"}
    assert result.results["group_subtasks"] == {"toy_group": ["toy_add", "toy_group::toy_inline"]}
    assert "task 'toy_choice' has no score: none of its documents was answered" in result.notes
    assert len(result.failures) == len(CHOICES) and "toy_choice" in result.fingerprints
    nothing = ToyModel(fail_on=lambda request: True)
    empty = make("toy_add", nothing).run(answer_with(nothing))
    assert empty.results["results"] == {} and len(empty.failures) == len(SUMS)


def test_samples_keep_true_document_numbers(make: Make) -> None:
    source = make("toy_add,toy_choice", ToyModel(reply=solve), samples={"toy_add": [5, 1, 5], "toy_choice": [4]})
    requests = source.requests()
    assert [r.doc_id for r in requests] == [1, 5, 4, 4, 4]
    assert requests[1].prompt == "Q: 2 plus 9\nA:"
    assert requests[1].seed == seeds.sample_key(1234, "toy_add", 5, 0)
    result = source.run(answer_with(ToyModel(reply=solve)))
    rows = [row for row in result.samples["toy_add"] if row["filter"] == "raw"]
    assert [(row["doc_id"], row["doc"]["answer"]) for row in rows] == [(1, "7"), (5, "11")]
    assert result.results["results"]["toy_add"]["exact_match,first-number"] == 0.5
    failing = ToyModel(reply=solve, fail_on=lambda request: request.doc_id == 1)
    part = make("toy_add", failing, samples={"toy_add": [5, 1]}).run(answer_with(failing))
    assert [row["doc_id"] for row in part.samples["toy_add"]] == [5, 5]
    assert part.results["results"]["toy_add"]["exact_match,first-number"] == 1.0


def test_samples_that_are_not_there(make: Make) -> None:
    with pytest.raises(UsageError, match=r"--samples: document 6 for task 'toy_add'; it has documents 0 to 5"):
        make("toy_add", samples={"toy_add": [0, 6]}).requests()
    with pytest.raises(UsageError, match="no document for task"):
        make("toy_add", samples={"toy_add": []}).requests()
    with pytest.raises(UnknownNameError, match="unknown task 'toy_ad' in --samples; closest: toy_add"):
        make("toy_add", samples={"toy_ad": [0]}).requests()


def test_one_call_answers_everything(make: Make) -> None:
    calls: list[int] = []
    answer = answer_with(ToyModel())

    def count(requests: Sequence[Request]) -> list[Sample]:
        calls.append(len(requests))
        return answer(requests)

    make("toy_add,toy_choice").run(count)
    assert calls == [len(SUMS) + 3 * len(CHOICES)]


def test_limits(make: Make) -> None:
    assert len(make("toy_add", limit=0.34).requests()) == 3
    assert len(make("toy_add", limit=4).requests()) == 4
    assert [r.key for r in make("toy_shots", limit=2).requests()] == [
        r.key for r in make("toy_shots").requests() if r.doc_id in (0, 1)
    ]


def test_settings_of_the_user_win_over_the_tasks(make: Make) -> None:
    request = make("toy_add", decoding={"max_gen_toks": 8, "steps": 4, "temperature": 0.5}).requests()[0]
    assert request.decoding == {"gen_length": 8, "steps": 4, "temperature": 0.5, "stop": ["Q:"]}
    assert make("toy_group", limit=1).requests()[-1].decoding["gen_length"] == 256  # the task names no length
    with pytest.raises(DecodingError, match=r"task 'toy_add': gen_length=16 is not a multiple of block_length=5"):
        make("toy_add", decoding={"block_length": 5}).requests()
    with pytest.raises(DecodingError, match="names of one field"):
        make("toy_add", decoding={"gen_length": 8, "max_gen_toks": 16})


def test_words_of_other_samplers(make: Make) -> None:
    """A task's are left out with a note, unless they do nothing; the user's are errors."""
    source = make("toy_sampled", limit=1)
    assert source.requests()[0].decoding == {"gen_length": 256, "temperature": 0.7, "stop": []}
    notes = [note for note in source.run(answer_with(ToyModel())).notes if "top_" in note]
    assert notes == ["task 'toy_sampled' sets top_p=0.95, which this model's family does not have: ignored"]
    with pytest.raises(DecodingError, match="'top_p' is not a field"):
        make("toy_add", decoding={"top_p": 0.95})


def test_is_greedy_is_asked_where_the_metric_reads_it(make: Make) -> None:
    requests = make("toy_words,toy_choice").requests()
    assert {(r.task, r.want_greedy) for r in requests} == {("toy_words", True), ("toy_choice", False)}
    result = make("toy_words").run(answer_with(ToyModel()))
    wanted = [a.answer.is_greedy for a in answer_with(ToyModel())(make("toy_words").requests())]
    assert result.results["results"]["toy_words"]["acc,none"] == pytest.approx(sum(wanted) / len(wanted))


def test_what_a_diffusion_model_does_not_define(make: Make) -> None:
    with pytest.raises(UsageError, match="task 'toy_rolling' needs loglikelihood_rolling"):
        make("toy_rolling").requests()


def test_chat_template(make: Make) -> None:
    flags: dict[str, Any] = {"apply_chat_template": True, "limit": 1}
    prompt = make("toy_shots", system_instruction="Add.", **flags).requests()[0].prompt
    assert isinstance(prompt, str)
    assert prompt.startswith("[system]Add.[user]Q: ") and prompt.endswith("[user]Q: 1 plus 2\nA:[assistant]")
    assert prompt.count("[user]") == 3
    single = make("toy_shots", fewshot_as_multiturn=False, **flags).requests()[0].prompt
    assert isinstance(single, str) and single.count("[user]") == 1
    result = make("toy_add", **flags).run(answer_with(ToyModel()))
    assert result.results["chat_template"].startswith("{% for m in messages %}")
    with pytest.raises(UsageError, match="--apply-chat-template: the model has no tokenizer"):
        make("toy_add", ToyModel(tokenizer=False), **flags).requests()


def test_a_chat_template_by_name(make: Make) -> None:
    model = ToyModel()
    prompt = make("toy_add", model, apply_chat_template="default", limit=1).requests()[0].prompt
    assert isinstance(prompt, str) and prompt.startswith("[user]Q: ")
    with pytest.raises(UnknownNameError, match="unknown chat template 'tool_use'; known: default"):
        make("toy_add", model, apply_chat_template="tool_use", limit=1).requests()


def test_few_shot_settings_are_honored(make: Make) -> None:
    def prompts(**fields: Any) -> list[Any]:
        return [r.prompt for r in make("toy_shots", **fields).requests()]

    assert prompts()[0].count("Q:") == 3
    assert prompts(num_fewshot=4)[0].count("Q:") == 5
    assert prompts() == prompts() != prompts(seeds="0,1234,1234,7")


def test_data_that_is_nowhere_is_one_line(make: Make, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "manifest.json").write_text('{"datasets": []}')
    with pytest.raises(DataError, match=r"task 'toy_add' could not be built: .*manifest\.json does not list") as error:
        make("toy_add", data_dir=str(tmp_path / "empty")).requests()
    assert "\n" not in str(error.value)


def test_lm_eval_is_quiet_and_its_warnings_are_notes(
    make: Make, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = make("toy_words", limit=2)
    result = source.run(answer_with(ToyModel()))
    out, err = capfd.readouterr()
    assert not out and not err
    assert logging.getLogger("lm_eval").propagate and not logging.getLogger("lm_eval").handlers
    assert isinstance(result.notes, list)
