"""Servers that are busy, hang, die or answer nonsense; what is sent to them, and what they may decide."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import served_engines
from served_engines import StandIn, reply

from dare_bench.errors import CheckpointError, DecodingError, EngineError, UsageError
from dare_bench.loading import load
from dare_bench.model_adapters.served import server as http
from dare_bench.types import Generation, Request, Sample

SERVERS = {"sglang": served_engines.sglang, "openai": served_engines.openai}
NAMES = {"sglang": "JetLM/SDAR-1.7B-Chat", "openai": "qwen"}
NUMBER = 6


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once."""
    monkeypatch.setattr(http, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(http, "_LONGEST_WAIT", 0.002)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    with SERVERS[request.param]() as running:
        yield running


@pytest.fixture
def sglang() -> Iterator[StandIn]:
    with served_engines.sglang() as running:
        yield running


@pytest.fixture
def openai() -> Iterator[StandIn]:
    with served_engines.openai() as running:
        yield running


def opened(server: StandIn, **args: Any) -> Any:
    engine = "sglang" if "dllm_algorithm" in server.started else "openai"
    settings = {"retries": 1, "timeout": served_engines.PATIENCE, **args}
    return load(NAMES[engine], engine=engine, engine_url=server.url, engine_args=settings).loaded


def asked(prompt: Any = "how many", number: int = NUMBER, **decoding: Any) -> list[Request]:
    return [Request(f"r{i}", "generate", prompt, decoding={"gen_length": 64, **decoding}) for i in range(number)]


def answer_of(sample: Sample) -> Generation:
    assert isinstance(sample.answer, Generation), sample.error
    return sample.answer


@pytest.mark.parametrize("fault", ["refuse", "half", "busy"])
def test_a_lost_answer_is_asked_for_again(server: StandIn, fault: str) -> None:
    model = opened(server, retries=2)  # both faults may meet one request
    server.faults = [fault, fault]
    samples = list(model.generate(asked(), max_rows=2))
    assert {answer_of(sample).text for sample in samples} == {reply("how many")} and len(samples) == NUMBER
    assert len(server.asked) == NUMBER + 2


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("half", "the stream ended in the middle|its response is incomplete"),
        ("refuse", "its response is incomplete or invalid .Server disconnected"),
        ("busy", "status 503: no room"),
        ("nonsense", "answered 8 < 9 where JSON was expected"),
        ("html", "not a stream of events"),
        ("wrong", "where (text|a list of objects) was expected"),
        ("bad", "status 400: the grammar is"),
    ],
)
def test_what_stays_unanswered_is_a_failure_that_names_its_cause(server: StandIn, fault: str, named: str) -> None:
    model, server.faults = opened(server, retries=0), [fault]
    samples = list(model.generate(asked(), max_rows=1))
    failed = [sample for sample in samples if sample.error is not None]
    assert len(samples) == NUMBER and len(failed) == 1
    with pytest.raises(AssertionError, match=named):
        answer_of(failed[0])


def test_an_answer_that_never_comes_is_a_failure_after_the_timeout(server: StandIn) -> None:
    """A server that is slow, too: whether it lives is asked with a timeout of its own."""
    model, server.faults = opened(server, retries=0, timeout=0.2), ["hang"]
    (sample,) = model.generate(asked(number=1))
    assert sample.error is not None and "no answer within the timeout" in sample.error


def test_a_server_that_dies_ends_the_pass_after_what_was_finished(server: StandIn) -> None:
    model = opened(server)
    finished = []
    with pytest.raises(
        EngineError, match=r"at http://127.0.0.1:\d+: .* does not answer either; finished answers are kept"
    ):
        for sample in model.generate(asked(number=20), max_rows=2):
            finished.append(sample)
            server.dead = len(finished) >= 3
    assert all(answer_of(sample) for sample in finished) and 3 <= len(finished) < 20
    server.dead = False
    assert len(list(model.generate(asked()))) == NUMBER


def test_a_server_that_is_not_there_is_named() -> None:
    with served_engines.openai() as server:
        url = server.url
    with pytest.raises(EngineError, match=f"{url}: no connection .*is it running"):
        load("qwen", engine="openai", engine_url=url, engine_args={"retries": 1})


def test_many_requests_are_in_flight_and_no_more_than_asked_for(server: StandIn) -> None:
    model, server.meeting = opened(server), threading.Barrier(8)
    assert len(list(model.generate(asked(number=24), max_rows=8))) == 24
    assert server.most == 8


def test_the_key_is_sent_and_a_refused_one_ends_the_pass(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = "s3cret"
    model = opened(server)
    with pytest.raises(EngineError, match="DARE_BENCH_API_KEY") as refused:
        list(model.generate(asked()))
    monkeypatch.setenv("DARE_BENCH_API_KEY", "s3cret")
    model = opened(server)
    assert len(list(model.generate(asked()))) == NUMBER
    assert "s3cret" not in f"{refused.value} {vars(model)['spec']} {model.server}"


def test_a_key_that_cannot_be_sent_is_not_shown(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_BENCH_API_KEY", "s3cret\x01é")
    with pytest.raises(UsageError, match="DARE_BENCH_API_KEY has characters") as refused:
        opened(server)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("127.0.0.1:30000", "expected http://"),
        ("ftp://host", "expected http://"),
        ("http://user:word@host", "no user, password"),
        ("http://host?key=word", "no user, password"),
        ("http://host:99999", "expected http://"),
    ],
)
def test_an_address_is_checked_and_holds_no_secret(url: str, named: str) -> None:
    with pytest.raises(UsageError, match=named) as refused:
        load("qwen", engine="openai", engine_url=url)
    assert "word@" not in str(refused.value) and "key=word" not in str(refused.value)


def test_another_model_is_refused(server: StandIn) -> None:
    engine = "sglang" if "dllm_algorithm" in server.started else "openai"
    with pytest.raises(UsageError, match=r"give --model (that|the) name"):
        load("gpt-2", engine=engine, engine_url=server.url, engine_args={"retries": 0})


def test_opening_settings_that_do_not_fit_the_engine(server: StandIn) -> None:
    for settings, named in (
        ({"engine": "openai"}, "needs the address"),
        ({"engine": "openia", "engine_url": server.url}, "unknown engine 'openia'; closest: openai"),
        ({"engine": "openai", "engine_url": server.url, "dtype": "float16"}, "started with its own"),
        ({"engine": "openai", "engine_url": server.url, "attention": "flex"}, "attention='flex': a server of"),
        (
            {"engine": "openai", "engine_url": server.url, "engine_args": {"timeot": 3}},
            "'timeot' is not a field of them",
        ),
        ({"engine_url": server.url}, "engine native runs here"),
        ({"engine_args": {"tp": 2}}, "engine native takes none"),
        ({"engine": "lmdeploy", "engine_url": server.url}, "engine lmdeploy runs here"),
    ):
        with pytest.raises(UsageError, match=named):
            load("qwen", **settings)  # type: ignore[arg-type]


# -- SGLang ----------------------------------------------------------------------------------------------------------


def test_sglang_states_its_model_sampler_and_version(sglang: StandIn) -> None:
    sglang.started["dllm_algorithm_config"] = "/etc/dllm/fast.yaml"
    model = opened(sglang)
    assert (model.spec.engine_version, model.spec.family, model.spec.context_limit) == ("0.5.23", "sdar", 512)
    assert model.content_hash == "stated:/models/SDAR-1.7B-Chat@default"
    recorded = model.resolve({}).model_dump()
    assert (recorded["algorithm"], recorded["algorithm_config"]) == ("LowConfidence", "fast.yaml")


def test_sglang_refuses_what_its_server_or_algorithm_decides(sglang: StandIn) -> None:
    model = opened(sglang)
    for field, value in (("steps", 4), ("threshold", 0.9), ("block_length", 8), ("denoising_steps", 2)):
        with pytest.raises(DecodingError, match=f"cannot honor {field}={value}: .*--dllm-algorithm-config"):
            model.resolve({field: value})
    for field, value in (("temperature", 0.7), ("top_p", 0.9), ("top_k", 5)):
        with pytest.raises(DecodingError, match=f"{field}={value}: its algorithm LowConfidence always takes"):
            model.resolve({field: value})
    for field, value in (("rng", "reference"), ("early_stop", False), ("text_after_eos", "keep"), ("mask_id", 3)):
        with pytest.raises(DecodingError, match=f"sglang cannot honor {field}="):
            model.resolve({field: value})
    sglang.started["dllm_algorithm"] = None  # an autoregressive model
    assert opened(sglang).resolve({"temperature": 0.7, "top_k": 5}).temperature == 0.7


@pytest.mark.parametrize("incremental", [False, True])
def test_both_kinds_of_sglang_streams(sglang: StandIn, incremental: bool) -> None:
    sglang.started["incremental_streaming_output"] = incremental
    (sample,) = opened(sglang).generate(asked([5, 6, 7], 1, stop=["STOP"]))
    answer, whole = answer_of(sample), reply([5, 6, 7])
    assert answer.text == whole[: whole.index("STOP")] and answer.finish_reason == "stop"
    assert bytes(answer.tokens).decode() == whole[: whole.index("STOP") + 4]
    body = sglang.asked[0]
    assert body["input_ids"] == [5, 6, 7] and body["sampling_params"]["temperature"] == 0
    (sample,) = opened(sglang).generate(asked("x", 1, gen_length=5))
    assert answer_of(sample).finish_reason == "length" and len(answer_of(sample).tokens) == 5


def test_weights_that_change_during_a_pass_end_it(sglang: StandIn) -> None:
    model = opened(sglang)
    sglang.facts["weight_version"] = "2"
    with pytest.raises(EngineError, match="changed from version default to 2"):
        list(model.generate(asked(number=1)))


def test_sglang_loads_weights_from_a_folder(sglang: StandIn) -> None:
    model = opened(sglang)
    model.read_weights("/shared/step-10")
    assert model.weights_version == 1 and model.content_hash.startswith("stated:/shared/step-10@1-")
    with pytest.raises(UsageError, match=r"serves /shared/step-10 or /shared/step-10, not 'JetLM/SDAR"):
        opened(sglang)
    other = load("step-10", engine="sglang", engine_url=sglang.url).loaded
    other.read_weights("/shared/step-10")
    assert other.content_hash != model.content_hash, "the folder may have changed in between"
    with pytest.raises(EngineError, match=r"changed from version 1-\w+ to 1-\w+ while it answered"):
        list(model.generate(asked(number=1)))
    model.read_weights("/shared/step-10")
    assert answer_of(next(iter(model.generate(asked(number=1))))).weights_version == 2
    sglang.loads = lambda body: "no such folder"
    with pytest.raises(CheckpointError, match="no such folder"):
        model.read_weights("/shared/step-20")
    assert model.weights_version == 2


def test_weights_that_a_server_did_not_take_are_an_error(sglang: StandIn) -> None:
    model, sglang.stale = opened(sglang), True
    with pytest.raises(CheckpointError, match=r"states weight version default after it loaded version 1-"):
        model.read_weights("/shared/step-10")
    assert model.weights_version == 0


def test_sglang_goes_on_after_an_eos_where_the_tokenizer_is_here(sglang: StandIn) -> None:
    sglang.started |= {"dllm_algorithm": "Drawn", "enable_deterministic_inference": True}
    model = opened(sglang, tokenizer="tiny-sdar")
    eos = model.spec.eos_ids[0]
    sglang.sample = lambda prompt, params: [20, eos, 21, 22][: params["max_new_tokens"]]
    for early_stop, length in ((False, 2), (None, 4)):
        (sample,) = model.generate(asked([5, 6], 1, gen_length=4, early_stop=early_stop, temperature=1.0))
        assert (answer_of(sample).tokens, answer_of(sample).tokens_to_eos) == ([20, eos, 21, 22], length)
    first, second = (body["sampling_params"] for body in sglang.asked)
    assert first["ignore_eos"] is True and "ignore_eos" not in second and first["sampling_seed"] == 0
    sglang.started["enable_deterministic_inference"] = False
    list(opened(sglang).generate(asked("x", 1, temperature=1.0)))
    assert "sampling_seed" not in sglang.asked[2]["sampling_params"]


# -- OpenAI's interface ----------------------------------------------------------------------------------------------


def test_openai_gets_text_and_messages_by_their_own_paths(openai: StandIn) -> None:
    model, messages = opened(openai), [{"role": "user", "content": "hello"}]
    samples = list(model.generate([*asked("hello", 1, temperature=0.5), *asked(messages, 1)], max_rows=1))
    assert [answer_of(sample).text for sample in samples] == [reply("hello"), reply(messages)[:64]]
    text, chat = openai.asked
    assert text["prompt"] == "hello" and text["seed"] == 0 and "messages" not in text
    assert chat["messages"] == messages and "seed" not in chat and chat["max_tokens"] == 64
    assert model.spec.engine_version == "vllm 0.11.0" and model.content_hash == "stated:qwen"
    assert answer_of(samples[0]).tokens_to_eos == len(reply("hello")) and answer_of(samples[0]).tier is None


def test_only_openais_own_fields_are_offered(openai: StandIn) -> None:
    model = opened(openai)
    for field in ("top_k", "steps", "cache"):
        with pytest.raises(DecodingError, match=f"no decoding field '{field}'"):
            model.resolve({field: 1})


def test_a_name_of_no_field_is_answered_with_those_that_the_engine_honors(openai: StandIn, sglang: StandIn) -> None:
    drawing = {**sglang.started, "dllm_algorithm": "Sampled"}
    models = [opened(openai), opened(sglang)]
    sglang.started = drawing
    offered = (", temperature, top_p", "", ", temperature, top_k, top_p")  # SGLang's LowConfidence never draws
    for model, more in zip([*models, opened(sglang)], offered, strict=True):
        with pytest.raises(DecodingError, match=f"it has gen_length, max_new_tokens, stop{more}$"):
            model.resolve({"gen_lenght": 8})
        for field in ("near_tie", "trajectory", "predictions"):
            with pytest.raises(DecodingError, match=f"cannot honor {field}=True: it returns finished tokens only"):
                model.resolve({field: True})
            assert getattr(model.resolve({field: False}), field) is False


def test_more_stop_strings_than_openai_takes_are_applied_here(openai: StandIn) -> None:
    (sample,) = opened(openai).generate(asked(number=1, stop=["a b", "c d", "e f", "g h", "STOP"]))
    assert "stop" not in openai.asked[0]
    assert answer_of(sample).text == reply("how many").partition("STOP")[0]


def test_an_address_of_something_else_is_named(openai: StandIn) -> None:
    with pytest.raises(EngineError, match="/model_info; is it an SGLang server"):
        load("qwen", engine="sglang", engine_url=openai.url, engine_args={"retries": 0})
    openai.facts = {"object": "list"}
    with pytest.raises(EngineError, match="lists no models"):
        load("qwen", engine="openai", engine_url=openai.url, engine_args={"retries": 0})


def test_prompts_are_token_ids_where_the_tokenizer_is_here(openai: StandIn) -> None:
    model = opened(openai, tokenizer="tiny-llada")
    list(model.generate(asked("2 + 3", 1)))
    assert openai.asked[0]["prompt"] == model.encode("2 + 3") != []
    assert not model.capabilities.messages


def test_the_python_api_takes_text_messages_and_lists(openai: StandIn) -> None:
    model = load("qwen", engine="openai", engine_url=openai.url, engine_args={"retries": 0})
    messages = [{"role": "user", "content": "hello"}]
    assert [answer.text for answer in model.generate(["hello", messages], gen_length=64)] == [
        reply("hello"),
        reply(messages)[:64],
    ]
    assert json.loads(json.dumps(model.load_settings))["engine"] == "openai"
