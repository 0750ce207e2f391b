"""``dare-bench eval --engine``: real tasks through lm-eval, and what a user reads where a server fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import served_engines
from served_engines import StandIn
from site_pages import board_data, pages, rows

from dare_bench.cli import main
from dare_bench.model_adapters.served import server as http
from dare_bench.registry import registry
from dare_bench.runs.reader import Run


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(http, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(http, "_LONGEST_WAIT", 0.002)
    with served_engines.openai() as running:
        yield running


def call(capsys: pytest.CaptureFixture[str], server: StandIn, *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of ``dare-bench eval`` with a server."""
    common = ("--model", "qwen", "--tasks", "dare_arithmetic", "--limit", "2", "--gen-length", "16")
    with pytest.raises(SystemExit) as left:
        main(["eval", *common, "--engine", "openai", "--engine-url", server.url, *words])
    out, err = capsys.readouterr()
    code = left.value.code
    return (code if isinstance(code, int) else 0 if code is None else 1), out, err


def test_a_task_by_text_and_by_messages(server: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, server)
    assert code == 0
    assert "engine: openai vllm 0.11.0, which states its model; the content is unverified" in out
    assert "tier unknown, openai vllm 0.11.0" in out and "forward passes not reported" in out
    texts, server.asked = [body["prompt"] for body in server.asked], []
    assert len(texts) == 2 and all(isinstance(text, str) for text in texts)
    code, out, _ = call(capsys, server, "--apply-chat-template", "--system-instruction", "Be brief.")
    assert code == 0
    with pytest.raises(SystemExit) as left:
        main(["score", str(Path(out.splitlines()[-1]).parent)])
    assert left.value.code in (0, None), capsys.readouterr().err
    assert "values of 2 documents" in capsys.readouterr().out
    roles = [[message["role"] for message in body["messages"]] for body in server.asked]
    assert roles == [["system", "user"]] * 2
    assert sorted(body["messages"][1]["content"] for body in server.asked) == sorted(texts)


def test_one_line_where_the_server_is_gone_or_settings_do_not_fit(
    server: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected, named in (
        (("--steps", "4"), 2, "engine openai has no decoding field 'steps'"),
        (("--engine-args", "retrys=1"), 2, "'retrys' is not a field"),
        (("--devices", "2"), 2, "--devices and --executor"),
        (("--engine", "vllm"), 2, "unknown engine 'vllm'"),
        (("--apply-chat-template", "llama"), 2, "the server renders the messages"),
        (("--engine-url", "http://127.0.0.1:9", "--engine-args", "retries=0"), 1, "is it running?"),
    ):
        code, _, err = call(capsys, server, *words)
        assert code == expected and named in err and "Traceback" not in err, err
    assert not server.asked


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--tasks", "dare_arithmetic,hellaswag"), "'hellaswag' needs log-likelihoods, which engine openai does not"),
        (("--tasks", "arc_easy", "--engine", "lmdeploy"), "'arc_easy' needs log-likelihoods, which engine lmdeploy"),
        (("--steps", "4"), "engine openai has no decoding field 'steps'"),
        (("--remasking", "random"), "engine openai has no decoding field 'remasking'; it has "),
        (("--steps", "4", "--engine", "sglang"), "engine sglang cannot honor steps=4: it is fixed when the server"),
        (("--gen-length", "0"), "gen_length=0"),
        (("--text-after-eos", "keep"), "engine openai cannot honor text_after_eos='keep'"),
    ],
)
def test_what_an_engine_never_has_is_refused_before_its_server_is_asked(
    server: StandIn, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], named: str
) -> None:
    server.dead = True
    code, _, err = call(capsys, server, *words)
    assert code == 2 and named in err, err


def test_what_a_server_says_is_escaped(server: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    server.faults = ["bad", "bad"]
    code, out, err = call(capsys, server, "--engine-args", "retries=0", "--json")
    assert code == 4 and "\x1b" not in out + err and "is broken" not in err
    failures = json.loads(out)["dare_bench"]["failures"]
    assert len(failures) == 2 and "the grammar is" in failures[0]["error"]


RECIPE = """
checkpoint: qwen
model: qwen
family: causal
config: {num_hidden_layers: 2, hidden_size: 32}
scores:
  sums:
    published:
      {value: 50.0, unit: percent, metric: exact match, measures: accuracy, mean_over: documents, cache: none,
       test_set: {id: sums}, source: {title: a test}}
    run: {harness: lm-eval, tasks: dare_arithmetic, engine: openai, decoding: {gen_length: 16}}
    score: {task: dare_arithmetic, metric: exact_match}
    settings: recorded
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The output of a command that succeeds."""
    with pytest.raises(SystemExit) as left:
        main(list(words))
    out, err = capsys.readouterr()
    assert left.value.code in (0, None), err
    return out


def test_a_recipe_of_an_engine_is_run_by_it_shown_on_a_board_and_exported(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "qwen.yaml").write_text(RECIPE)
    monkeypatch.setattr(registry(), "_entries", {**registry()._entries})
    registry().add("recipe", "qwen", str(tmp_path / "qwen.yaml"), origin="a test")
    out = run(capsys, "eval", "--recipe", "qwen/sums", "--limit", "2", "--engine-url", server.url)
    folder = Path(out.splitlines()[-1]).parent
    block = Run(folder).require_block()
    assert block.model.engine is not None and block.model.engine.name == "openai" and block.model.on_server
    assert [recipe.deviations for recipe in block.recipes] == [["limit: 2"]], "the engine is none"
    run(capsys, "leaderboard", "build", str(folder), "-o", "site")
    (row,) = rows(Path("site")).values()
    assert "tier unknown, openai vllm 0.11.0" in row and "limit 2" in row
    assert board_data(Path("site"))["rows"][0]["hardware"] == "", "that of this machine is not the server's"
    (page,) = (page.words for page in pages(Path("site")) if page.path.parent.name == folder.name)
    for words in (
        "answered by openai vllm 0.11.0, which states its model; the content is unverified",
        "family unknown, unknown number of parameters, dtype unknown",
        "stated:qwen",
        "The hardware of the server is not recorded.",
    ):
        assert words in page
    assert (Path("site") / "runs" / folder.name / "samples" / "dare_arithmetic" / "1.html").exists()
    table = run(capsys, "export", "table", str(folder), "--format", "csv")
    assert "tier unknown, openai vllm 0.11.0" in table and "limited" in table
    run(capsys, "export", "hub", str(folder), "--allow-partial", "--dataset", "dare_arithmetic=me/sums", "-o", "hub")
    (card,) = Path("hub/.eval_results").glob("*.yaml")
    assert "answered by openai vllm 0.11.0" in " ".join(card.read_text().split())
