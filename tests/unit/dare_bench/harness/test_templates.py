"""Templates of tasks and chats reach their data and nothing else, by whatever way they are rendered."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command
import pytest
from require import need_package
from toy_model import ToyModel
from toy_tasks import FILES, write_data, write_tasks

from dare_bench import chat, chat_worker
from dare_bench.config import run_spec
from dare_bench.engine.recorded_answers import RecordedModel
from dare_bench.errors import DareError, DataError, PromptError
from dare_bench.harness.common.scoring_process import worker
from dare_bench.harness.lm_eval.lm import sandbox_templates
from dare_bench.harness.lm_eval.source import LmEvalSource
from dare_bench.loading import locate
from dare_bench.model_adapters.dream import family as dream
from dare_bench.model_adapters.encoding import open_tokenizer, render_chat
from dare_bench.model_adapters.llada import family as llada
from dare_bench.model_adapters.llada2 import family as llada2
from dare_bench.model_adapters.sdar import family as sdar
from dare_bench.sandbox.worker_process import ItemError, why_not_enclosed
from dare_bench.training.tokens import turn_end

need_package("lm_eval")
ESCAPES = [
    "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "{{ namespace.__init__.__globals__['__builtins__']['open']('MARK', 'w') }}",
    "{{ (''.__class__.__mro__|last).__subclasses__() }}",
    "{{ '{0.__class__.__init__}'.format(lipsum) }}",
    "{{ lipsum|attr('__globals__') }}",
]
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_task_s_template_reaches_no_python(tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    words = template.replace("MARK", str(tmp_path / "mark")).replace('"', "'")
    tasks = write_tasks(tmp_path / "tasks", _base_yaml=FILES["_base_yaml"].replace("Q: {{question}}\\nA:", words))
    fields = {"include_path": str(tasks), "data_dir": str(write_data(tmp_path / "data"))}
    with pytest.raises(DataError, match="SecurityError") as error:
        LmEvalSource(run_spec(model="toy", tasks="toy_add", **fields), ToyModel()).requests()
    assert "\n" not in str(error.value) and not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "module", ["dare_bench.lm_eval", "dare_bench.harness.lm_eval.task_manager", "dare_bench.harness.lm_eval.lm"]
)
def test_whoever_asks_lm_eval_for_prompts_renders_in_the_sandbox(tmp_path: Path, module: str) -> None:
    script = tmp_path / "script.py"
    lines = ["import sys", "assert 'dare_bench.harness.lm_eval.lm' not in sys.modules", f"import {module}"]
    lines += ["from lm_eval.utils import apply_template", f"apply_template({ESCAPES[2]!r}, {{}})"]
    script.write_text("\n".join(lines))
    done = command.run(script=script)
    assert done.returncode == 1 and "SecurityError" in done.stderr


def test_the_sandbox_renders_as_lm_eval_does() -> None:
    import lm_eval.utils
    from jinja2 import BaseLoader, Environment, StrictUndefined, UndefinedError

    sandbox_templates()
    plain = Environment(loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True)
    left_out = {"cache", "globals", "filters", "loader", "from_string"}
    settings = {name: value for name, value in vars(plain).items() if name not in left_out}
    assert settings.items() <= vars(lm_eval.utils.env).items()
    assert set(lm_eval.utils.env.filters) == {*plain.filters, "regex_replace"}
    render = lm_eval.utils.apply_template
    assert render("{{ a|regex_replace('l+', 'L') }}, {{ b['c'][0] }}{{ d.e.strip() }}\n", DOC) == "heLo, 1x\n"
    with pytest.raises(UndefinedError, match="'f' is undefined"):
        render("{{ f }}", DOC)
    assert lm_eval.utils.env.from_string("{{ a }}") is lm_eval.utils.env.from_string("{{ a }}")  # compiled once


DOC = {"a": "hello", "b": {"c": [1]}, "d": {"e": " x "}}


def opened(folder: Path, template: str, in_config: bool) -> Any:
    """The tokenizer of a bundled checkpoint whose folder holds this chat template."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(locate("tiny-llada") / name, folder / name)
    if in_config:
        place = folder / "tokenizer_config.json"
        place.write_text(json.dumps({**json.loads(place.read_text()), "chat_template": template}))
    else:
        (folder / "chat_template.jinja").write_text(template)
    return open_tokenizer(folder, 1 << 20)


def recorded(folder: Path, template: str) -> Any:
    """The tokenizer that stands in where a run's answers are scored again."""
    run = SimpleNamespace(results={"chat_template": template, "tokenizer_eos_token": ["<eos>", "0"]})
    model = SimpleNamespace(name="m", family="llada", dtype="float32", parameters=1, engine=None)
    return RecordedModel(run, SimpleNamespace(model=model, tasks={}), True).tokenizer  # type: ignore[arg-type]


TOKENIZERS: dict[str, Callable[[Path, str], Any]] = {
    "chat_template.jinja": lambda folder, template: opened(folder, template, False),
    "tokenizer_config.json": lambda folder, template: opened(folder, template, True),
    "results file": recorded,
}


def by_lm_eval(tokenizer: Any) -> str:
    from dare_bench.harness.lm_eval.lm import AnsweringLM

    return AnsweringLM(SimpleNamespace(tokenizer=tokenizer)).apply_chat_template(MESSAGES)  # type: ignore[arg-type]


WAYS: dict[str, Callable[[Any], Any]] = {
    "lm-eval": by_lm_eval,
    "adapter": lambda tokenizer: render_chat(MESSAGES, tokenizer, None),
    "training": lambda tokenizer: turn_end(tokenizer, ()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", TOKENIZERS)
def test_a_chat_template_reaches_no_python(tmp_path: Path, source: str, way: str) -> None:
    for number, escape in enumerate(ESCAPES):
        template = escape.replace("MARK", str(tmp_path / "mark"))
        tokenizer = TOKENIZERS[source](tmp_path / str(number), template)
        assert tokenizer.chat_template == template
        try:
            assert not WAYS[way](tokenizer)  # what it may not reach is undefined, which transformers renders as nothing
        except DareError as error:
            assert "is unsafe" in str(error)
        assert not (tmp_path / "mark").exists()


class _ForkedWorker:
    """The process that renders, forked from a server that has imported transformers: most of its start is that."""

    def __init__(self, pipe: Any) -> None:
        self._process = command.forkserver.Process(target=chat_worker.main, args=(pipe,))
        self._process.start()
        self.pid, self.kill = self._process.pid, self._process.kill

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For templates that end the process: it starts soon again."""

    def start() -> tuple[_ForkedWorker, Any]:
        ours, reference = Pipe()
        with reference:
            return _ForkedWorker(reference), ours

    own = chat._Worker()
    monkeypatch.setattr(chat, "_worker", own)
    monkeypatch.setattr(chat, "_start", start)
    yield
    if own._process is not None:
        own._stop(own._process, kill=True)


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "power": "{% set a = messages|length + 8 %}{{ (a**(a**a))|string|length }}",
    "power while it is compiled": "{{ (9**(9**9))|string|length }}",
    "nested": "{% set n = namespace(a=1) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a }}",
}
TOO_LARGE = {
    "repeat": "{{ 'a' * 10**11 }}",
    "repeat of what is given": "{{ messages[0].role * 10**11 }}",
    "center": "{{ 'a'|center(10**11) }}",
    "method": "{{ 'a'.ljust(10**11) }}",
    "percent": "{{ '%99999999999d' % 1 }}",
    "format": "{{ '{:>99999999999}'.format(1) }}",
    "indent": "{{ 'a\na'|indent(10**11) }}",
    "doubling": "{% set ns = namespace(a='a') %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "list": "{{ [1] * 10**10 }}",
    "blocks": "{% set a = 'a' * 10**6 %}{% set b %}" + "{{ a }}" * 5000 + "{% endset %}",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.usefixtures("forked")
def test_a_template_that_would_not_end_is_ended(
    tmp_path: Path, way: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "SECONDS", 0.2)
    with pytest.raises(DareError, match=r"still rendering after 0\.2 seconds"):
        WAYS[way](recorded(tmp_path, ENDLESS[what]))


@pytest.mark.parametrize("what", TOO_LARGE)
@pytest.mark.usefixtures("forked")
def test_a_template_that_takes_too_much_memory_is_ended(tmp_path: Path, what: str) -> None:
    with pytest.raises(PromptError, match=r"needs more than 1,024 MiB of memory|refuses these messages: \w+Error"):
        chat.render(MESSAGES, recorded(tmp_path, TOO_LARGE[what]))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "infinite recursion"),
        ("{{ 'a' * 16777217 }}", "the prompt has 16,777,217 characters, more than the limit of 16,777,216"),
        ("{{ 1 / 0 }}", "refuses these messages: ZeroDivisionError"),
    ],
)
def test_a_template_that_fails_says_why(tmp_path: Path, template: str, says: str) -> None:
    with pytest.raises(PromptError, match=says):
        chat.render(MESSAGES, recorded(tmp_path, template))


ANSWER = {"role": "assistant", "content": "a\n", "name": None}
CHATS: list[list[dict[str, Any]]] = [
    MESSAGES,
    [{"role": "system", "content": "é😀 <|x|>"}, *MESSAGES, ANSWER],
    [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
]


@pytest.mark.parametrize("family", [dream, llada, llada2, sdar], ids=lambda module: module.__name__.split(".")[-2])
@pytest.mark.parametrize("options", [{"add_generation_prompt": True}, {"continue_final_message": True}], ids=str)
def test_the_process_renders_as_transformers_does(family: Any, options: dict[str, Any]) -> None:
    tokenizer: Any = open_tokenizer(locate(f"tiny-{family.__name__.split('.')[-2]}"), 1 << 20)
    rendered = 0
    for template in (tokenizer.chat_template, family.CHAT_TEMPLATE):
        for messages in CHATS:
            given = {"chat_template": template, **options}
            try:
                reference = tokenizer.apply_chat_template(messages, tokenize=False, **given)
            except Exception as error:  # a template that refuses a system message, or a text in parts
                with pytest.raises((type(error), PromptError)):
                    chat.render(messages, tokenizer, **given)
            else:
                assert chat.render(messages, tokenizer, **given) == reference
                rendered += 1
    assert rendered >= 4


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    tokenizer = recorded(tmp_path, "{{ messages[0].content }}")
    assert chat.render(MESSAGES, tokenizer) == "hi"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("multiprocessing.connection.Connection.recv_bytes", interrupt)
        chat.render([{"role": "user", "content": "interrupted"}], tokenizer)
    assert chat.render(MESSAGES, tokenizer) == "hi"


def test_the_limit_holds_where_the_signal_was_ignored_and_blocked(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN), signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        worker = chat._Worker()
        request = {"messages": MESSAGES, "special": {}, "seconds": 0.5, "options": {"chat_template": ENDLESS["power"]}}
        with pytest.raises(PromptError, match="still rendering"):
            worker.send(json.dumps(request).encode())
    finally:
        signal.signal(signal.SIGALRM, before[0])
        signal.pthread_sigmask(signal.SIG_SETMASK, before[1])


def test_a_forked_process_asks_a_process_of_its_own(tmp_path: Path) -> None:
    tokenizer = recorded(tmp_path, "{{ messages[0].content }}")
    assert chat.render(MESSAGES, tokenizer) == "hi"
    ours = chat._worker._process
    child = os.fork()
    if child == 0:
        right = chat.render(MESSAGES, tokenizer) == "hi" and chat._worker._process.pid != ours.pid  # type: ignore[union-attr]
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert chat.render(MESSAGES, tokenizer) == "hi" and chat._worker._process is ours


@pytest.mark.skipif(why_not_enclosed() is not None, reason="no sandbox for harness code works here")
def test_templates_are_rendered_in_the_sandbox_for_harness_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = recorded(tmp_path, "{{ messages[0].content }}")
    with worker({"render": lambda: chat.render(MESSAGES, tokenizer)}) as guard:
        assert guard.call("render") == "hi"
    monkeypatch.setattr(chat, "SECONDS", 0.5)
    endless = recorded(tmp_path, ENDLESS["power"])
    with (
        worker({"render": lambda: chat.render(MESSAGES, endless)}) as guard,
        pytest.raises(ItemError, match="still rendering"),
    ):
        guard.call("render")


def test_messages_that_cannot_be_sent_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"chat messages may contain text, .* set "):
        chat.render([{"role": "user", "content": {1}}], recorded(tmp_path, "x"))


def test_a_template_has_a_greatest_length(tmp_path: Path) -> None:
    for template in ("x" * (chat.MAX_LENGTH + 1), {"default": "x", "tool_use": "x" * (chat.MAX_LENGTH + 1)}):
        tokenizer = recorded(tmp_path, "x")
        tokenizer.chat_template = template
        with pytest.raises(PromptError, match=r"has 262,145 characters, more than the limit of 262,144"):
            chat.render(MESSAGES, tokenizer)
    assert chat.render(MESSAGES, recorded(tmp_path, "x" * chat.MAX_LENGTH)) == "x" * chat.MAX_LENGTH
