"""Our models as a model class of OpenCompass: called as it calls them, and under its own command."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import command
import numpy
import pytest
from paths import ROOT
from require import need_package

from dare_bench import load
from dare_bench.analysis.run_finder import open_run
from dare_bench.config import run_spec
from dare_bench.errors import DareError, DecodingError
from dare_bench.harness.opencompass.source import OpenCompassSource
from dare_bench.types import Request

OPENCOMPASS = Path(need_package("opencompass").__file__).parent
BENCH = ROOT / "tests" / "data" / "bench"
SHORT = {"gen_length": 8, "steps": 2}


def model(**fields: Any) -> Any:
    from dare_bench.opencompass import DareBenchModel

    return DareBenchModel(path="tiny-llada", **{"decoding": SHORT, "likelihood": {"mc_num": 16}, **fields})


@cache
def plain() -> Any:
    return model()


def turns() -> Any:
    """What a template of two turns is before it is parsed."""
    from opencompass.utils.prompt import PromptList

    sides = [{"section": "round", "pos": "begin"}, {"section": "round", "pos": "end"}]
    return PromptList([sides[0], {"role": "HUMAN", "prompt": "3+4="}, {"role": "BOT", "prompt": ""}, sides[1]])


def test_texts_are_those_of_the_model_itself() -> None:
    prompts = ["3+4=", "12+5=", "3+4="]
    given = plain().generate_from_template(prompts, max_out_len=64)  # decoding fields win over max_out_len
    expected = load("tiny-llada").generate(prompts, seed=1234, **SHORT)
    assert given == [answer.text for answer in expected]


def test_a_prompt_list_becomes_text_or_messages() -> None:
    assert plain().generate_from_template([turns()], max_out_len=8) == plain().generate(["3+4="], max_out_len=8)
    chat = model(apply_chat_template=True, system_instruction="Add.")
    parsed = chat.parse_template(turns(), mode="gen")
    system = {"role": "system", "content": "Add."}
    # OpenCompass's parser ends a turn of the user with a line break: an empty turn of its SYSTEM role is joined to it.
    messages = [system, {"role": "user", "content": "3+4=\n"}]
    assert chat._prompt(parsed) == messages
    assert chat._prompt([{"role": "user", "content": "3+4="}]) == [system, {"role": "user", "content": "3+4="}]
    [text] = chat.generate_from_template([turns()], max_out_len=8)
    assert text == load("tiny-llada").generate([messages], seed=1234, **SHORT)[0].text


def test_a_text_depends_on_seed_and_prompt_alone() -> None:
    warm = {**SHORT, "temperature": 1.0}
    first, alone = model(decoding=warm, max_rows=1), model(decoding=warm)
    prompts = [f"{n}+{n}=" for n in range(4)]
    together = first.generate(prompts, max_out_len=8)
    assert [alone.generate([prompt], max_out_len=8)[0] for prompt in reversed(prompts)] == together[::-1]
    again = first.generate(prompts, max_out_len=8)
    assert again != together  # the same prompt once more is another draw
    assert model(decoding=warm, seed=5).generate(prompts, max_out_len=8) != together


def test_stopping_criteria_cut_the_text() -> None:
    [whole] = model().generate(["3+4="], max_out_len=8)
    assert len(whole) > 1
    [cut] = model().generate(["3+4="], max_out_len=8, stopping_criteria=[whole[1]])
    assert cut == whole[: whole.index(whole[1])]


def test_perplexities_are_means_over_tokens() -> None:
    texts = ["3+4=7", "3+4=7 and more"]
    result = plain().get_ppl(texts)
    assert isinstance(result, numpy.ndarray) and result.shape == (2,) and (result > 0).all()
    assert result.tolist() == plain().get_ppl(texts).tolist()
    [behind] = plain().get_ppl(["3+4=7"], mask_length=[plain().get_token_len("3+4=")])
    assert plain().get_token_len("3+4=7") == plain().get_token_len("3+4=") + 1
    tokens = plain().loaded.encode("3+4=7")  # one token behind a context: the mean is the value itself, and exact
    [sample] = plain().loaded.score([Request("0", "score", tokens[:-1], tokens[-1:])])
    assert behind == pytest.approx(-sample.answer.value)


def test_errors_are_ours() -> None:
    with pytest.raises(DecodingError, match="stepz"):
        model(decoding={"stepz": 3})
    with pytest.raises(DareError, match="context"):
        plain().generate(["1" * 10_000], max_out_len=8)


CONFIG = """
from mmengine.config import read_base
from opencompass.partitioners import NaivePartitioner
from opencompass.runners import LocalRunner
from opencompass.tasks import OpenICLInferTask

from dare_bench.opencompass import DareBenchModel

with read_base():
    from opencompass.configs.datasets.gsm8k.gsm8k_0shot_gen_a58960 import gsm8k_datasets as datasets

datasets[0]["reader_cfg"]["test_range"] = "[0:2]"
models = [dict(type=DareBenchModel, abbr="tiny-llada", path="tiny-llada", apply_chat_template=True,
               decoding=dict(gen_length=8, steps=2), max_out_len=64, batch_size=8, run_cfg=dict(num_gpus=0))]
task = dict(type=OpenICLInferTask)
infer = dict(partitioner=dict(type=NaivePartitioner), runner=dict(type=LocalRunner, task=task, keep_tmp_file=True))
"""


@pytest.mark.slow
def test_under_opencompass_own_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command with ``--debug`` runs its tasks in one process. What it adds otherwise, a process for each task that
    has nothing but a dumped configuration, is shown by starting the first task's program once more."""
    monkeypatch.delenv("DARE_BENCH_DATA", raising=False)
    data = tmp_path / "data" / "gsm8k"
    data.mkdir(parents=True)
    for split in ("train", "test"):
        (data / f"{split}.jsonl").write_text((BENCH / "gsm8k" / f"{split}.jsonl").read_text())
    (tmp_path / "config.py").write_text(CONFIG)
    monkeypatch.setenv("COMPASS_DATA_CACHE", str(tmp_path))
    words = ["config.py", "-w", "work", "--debug"]
    done = command.run(*words, script=OPENCOMPASS / "cli" / "main.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [predictions] = (tmp_path / "work").rglob("predictions/tiny-llada/gsm8k.json")
    answers = json.loads(predictions.read_text())
    questions = [json.loads(line) for line in (BENCH / "gsm8k" / "test.jsonl").read_text().splitlines()[:2]]
    assert [row["gold"] for row in answers.values()] == [row["answer"] for row in questions]
    chat = model(apply_chat_template=True)
    prompts = [row["origin_prompt"] for row in answers.values()]
    assert [row["prediction"] for row in answers.values()] == chat.generate(prompts, max_out_len=64)
    # From our side: the same prompts.
    spec = run_spec(
        model="tiny-llada", harness="opencompass", tasks="gsm8k_0shot_gen_a58960", limit=2, apply_chat_template=True
    )
    requests = OpenCompassSource(spec, chat.loaded).requests()
    assert [request.prompt for request in requests] == [chat._prompt(prompt) for prompt in prompts]
    [scores] = [json.loads(path.read_text()) for path in (tmp_path / "work").rglob("results/tiny-llada/gsm8k.json")]
    assert 0 <= scores["accuracy"] <= 100
    external = open_run(tmp_path / "work")
    assert (external.model, external.tasks, external.status) == ("tiny-llada", ["gsm8k"], "external")
    assert [score.value for score in external.scores()] == [scores["accuracy"] / 100] and external.scores()[0].limited
    assert [row["resps"][0][0] for row in external.samples("gsm8k")] == [row["prediction"] for row in answers.values()]
    predictions.unlink()
    [dumped] = (tmp_path / "tmp").glob("*_params.py")
    done = command.run(str(dumped), script=OPENCOMPASS / "tasks" / "openicl_infer.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(predictions.read_text()) == answers
