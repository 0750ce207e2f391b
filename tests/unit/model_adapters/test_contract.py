"""What the engine may expect of every loaded model: the same tests for the families, for autoregressive models, and
for served engines through stand-ins. To add a model, add one entry to ``OPENED``.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import a2d_checkpoints
import causal_models
import golden
import lmdeploy_engine
import pytest
import served_engines

from dare_bench.errors import DareError, DecodingError
from dare_bench.loading import load
from dare_bench.model_adapters.served import lmdeploy
from dare_bench.protocols import LoadedModel
from dare_bench.types import Decoding, Generation, Likelihood, LoopStats, Prompt, Request, Sample

CAN = ("trajectory", "predictions", "near_tie")


@dataclass
class Opened:
    """A model, prompts that it can answer, one that is too long for it, and the decoding that makes answers short.
    ``folder``: weights that it can load."""

    model: LoadedModel
    prompts: Sequence[Prompt]
    too_long: Prompt
    fields: Mapping[str, Any] = field(default_factory=lambda: {"gen_length": 8})
    folder: Path = golden.FOLDER

    @property
    def gen_length(self) -> int:
        return int(self.fields["gen_length"])


IDS: list[Prompt] = [[5, 6, 7], [10, 11, 12, 13, 14], [15]]
TEXTS: list[Prompt] = ["one", "a longer prompt", [{"role": "user", "content": "a message"}], "x"]


@contextlib.contextmanager
def native(family: str, **fields: int) -> Iterator[Opened]:
    model = golden.model(family)
    assert model.path is not None
    yield Opened(model.loaded, IDS, [5] * 5000, {"gen_length": 4, **fields}, model.path)


@contextlib.contextmanager
def a2d(family: str) -> Iterator[Opened]:
    with tempfile.TemporaryDirectory() as place:
        folder = a2d_checkpoints.made(Path(place) / "checkpoint")
        model = load(folder, family=family, device="cpu", mask_id=a2d_checkpoints.MASK)
        yield Opened(model.loaded, IDS, [5] * 5000, {"gen_length": 7, "block_length": 4}, folder)


@contextlib.contextmanager
def bundled(name: str) -> Iterator[Opened]:
    opened = load(name, device="cpu")
    assert opened.path is not None
    prompts: list[Prompt] = ["2 + 3", "a", [4, 5]]
    yield Opened(opened.loaded, prompts, [4] * opened.spec.context_limit, {"gen_length": 4, "steps": 2}, opened.path)


@contextlib.contextmanager
def causal(make: Callable[[Path], Path], *prompts: Prompt) -> Iterator[Opened]:
    with tempfile.TemporaryDirectory() as name:
        folder = make(Path(name))
        yield Opened(load(folder, device="cpu").loaded, [*IDS, "a text", *prompts], [5] * 5000, folder=folder)


@contextlib.contextmanager
def by_lmdeploy() -> Iterator[Opened]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmdeploy, "MASK_ID", golden.cases("sdar")["meta"]["mask_id"])
        patch.setattr(lmdeploy, "_package", lmdeploy_engine.stand_in)
        loaded: Any = load(golden.PARITY / "sdar", engine="lmdeploy").loaded
        with contextlib.closing(loaded):
            yield Opened(loaded, IDS, [5] * 5000)


@contextlib.contextmanager
def by_sglang() -> Iterator[Opened]:
    with served_engines.sglang() as server:
        opened = load("SDAR-1.7B-Chat", engine="sglang", engine_url=server.url, engine_args={"retries": 0})
        yield Opened(opened.loaded, [*TEXTS, [1, 2, 3]], "x" * 5000)


@contextlib.contextmanager
def by_openai() -> Iterator[Opened]:
    with served_engines.openai() as server:
        opened = load("qwen", engine="openai", engine_url=f"{server.url}/v1", engine_args={"retries": 0})
        yield Opened(opened.loaded, TEXTS, "x" * 5000)


OPENED: dict[str, Callable[[], contextlib.AbstractContextManager[Opened]]] = {
    **{family: partial(native, family) for family in golden.FAMILIES if "llada2" not in family},
    **{family: partial(native, family, block_length=4) for family in ("llada2", "llada21")},
    "llada22": partial(native, "llada22", gen_length=8),
    "diffusion_gemma": partial(native, "diffusion_gemma", block_length=4, max_denoising_steps=4),
    "a2d_mdlm": partial(a2d, "a2d_mdlm"),
    "a2d_bd3lm": partial(a2d, "a2d_bd3lm"),
    "tiny-llada": partial(bundled, "tiny-llada"),
    "llama": partial(causal, causal_models.make_llama, [{"role": "user", "content": "a message"}]),
    "gpt2": partial(causal, causal_models.make_gpt2),
    "lmdeploy": by_lmdeploy,
    "sglang": by_sglang,
    "openai": by_openai,
}


@pytest.fixture(scope="module", params=OPENED)
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    with OPENED[request.param]() as value:
        yield value


def requests(opened: Opened, **decoding: Any) -> list[Request]:
    fields = {**opened.fields, **decoding}
    return [Request(f"r{i}", "generate", prompt, decoding=fields, seed=i) for i, prompt in enumerate(opened.prompts)]


def answers(opened: Opened, asked: Sequence[Request], **options: Any) -> dict[str, Sample]:
    """Samples by key, each of which came once and with its own request."""
    samples = list(opened.model.generate(iter(asked), **options))
    assert sorted(sample.request.key for sample in samples) == sorted(request.key for request in asked)
    return {sample.request.key: sample for sample in samples}


def generated(sample: Sample) -> Generation:
    assert isinstance(sample.answer, Generation) and sample.error is None, sample.error
    return sample.answer


def test_it_says_what_it_is(opened: Opened) -> None:
    model = opened.model
    assert isinstance(model, LoadedModel) and model.spec.context_limit > 0 and model.spec.vocab_size > 0
    served = model.spec.engine != "native"
    assert (model.network is None) == served and (model.spec.engine_version is not None) == served
    without = model.spec.attention == "causal" or model.spec.noise == "uniform"
    assert served or (model.spec.mask_id is None) == without


def test_every_request_comes_back_once_with_its_answer(opened: Opened) -> None:
    samples = answers(opened, requests(opened), stats=LoopStats())
    for sample in samples.values():
        answer = generated(sample)
        assert len(answer.tokens) <= opened.gen_length and all(token >= 0 for token in answer.tokens)
        assert answer.tokens_to_eos >= 0 and answer.nfe >= 0 and answer.seconds >= 0
        assert (answer.text is None) == (opened.model.tokenizer is None and not opened.model.capabilities.messages)
        assert answer.prompt_tokens > 0 and answer.weights_version == opened.model.weights_version
        assert (answer.nfe > 0) == (opened.model.spec.engine == "native")
    assert list(opened.model.generate([])) == []


def test_order_and_number_at_a_time_change_no_answer(opened: Opened) -> None:
    asked = requests(opened)
    want = {key: generated(sample) for key, sample in answers(opened, asked).items()}
    for order, rows in ((asked[::-1], 1), (asked[1:] + asked[:1], 3)):
        for key, sample in answers(opened, order, max_rows=rows).items():
            assert (generated(sample).tokens, generated(sample).text) == (want[key].tokens, want[key].text)


def test_a_request_that_cannot_be_answered_fails_alone(opened: Opened) -> None:
    asked = requests(opened)
    too_long = Request("long", "generate", opened.too_long, decoding=asked[0].decoding)
    samples = answers(opened, [asked[0], too_long, *asked[1:]])
    error = samples.pop("long").error
    assert error is not None and "\n" not in error and len(error) < 500
    assert all(generated(sample) for sample in samples.values())


def test_decoding_is_resolved_or_refused(opened: Opened) -> None:
    model, length = opened.model, opened.gen_length
    decoding = model.resolve({"max_new_tokens": length, "stop": "x"})
    assert isinstance(decoding, Decoding) and decoding.gen_length == length and decoding.stop == ("x",)
    assert model.resolve({"gen_length": length, "early_stop": True}).early_stop is True
    for fields in ({"lenght": 8}, {"gen_length": 0}, {"temperature": -1.0}, {"gen_length": 8, "max_new_tokens": 9}):
        with pytest.raises(DecodingError, match=r"^[^\n]+$"):
            model.resolve(fields)
    assert model.forwards(requests(opened)[0]) >= 1


def test_capabilities_are_honest(opened: Opened) -> None:
    model, asked = opened.model, requests(opened)[:1]
    for name in CAN:
        fields = {**opened.fields, name: True}
        if not getattr(model.capabilities, name):
            with pytest.raises(DecodingError, match=name):
                model.resolve(fields)
            continue
        answer = generated(answers(opened, [Request("r", "generate", asked[0].prompt, decoding=fields)])["r"])
        assert getattr(answer, name) is not None


def test_likelihoods_are_there_or_refused(opened: Opened) -> None:
    request = Request("s", "score", opened.prompts[0], target=[5], decoding={})
    if opened.model.capabilities.likelihood:
        (sample,) = opened.model.score([request])
        assert isinstance(sample.answer, Likelihood) and sample.answer.value < 0
        return
    for attempt in (partial(opened.model.resolve_likelihood, {}), partial(opened.model.score, [request])):
        with pytest.raises(DareError, match="log-likelihoods; use --engine native"):
            attempt()


def test_weights_are_replaced_or_refused(opened: Opened) -> None:
    model, before = opened.model, opened.model.weights_version
    if not model.capabilities.weight_update:
        with pytest.raises(DareError):
            model.read_weights(opened.folder)
        assert model.weights_version == before
        return
    want = answers(opened, requests(opened))
    model.read_weights(opened.folder)
    for key, sample in answers(opened, requests(opened)).items():
        assert generated(sample).text == generated(want[key]).text
        assert generated(sample).weights_version == model.weights_version


def test_a_stop_string_ends_the_text(opened: Opened) -> None:
    asked = requests(opened)[:1]
    plain = generated(answers(opened, asked)["r0"])
    whole = [letter for letter in (plain.text or "")[1:] if letter != "\ufffd"]  # which stands for parts of letters
    if plain.text is None or not whole:
        pytest.skip("no text to stop")
    stop = whole[0]
    answer = generated(answers(opened, requests(opened, stop=[stop])[:1])["r0"])
    assert answer.text == plain.text[: plain.text.index(stop)] and answer.finish_reason == "stop"


def test_an_unfinished_pass_can_be_left(opened: Opened) -> None:
    """Nor does it take more requests than it may answer at a time: other workers wait for them."""
    first, count = requests(opened)[0], itertools.count()
    endless: Iterator[Request] = (replace(first, key=f"n{i}") for i in count)
    samples = opened.model.generate(endless, max_rows=2)
    assert generated(next(iter(samples)))
    assert next(count) <= 3
    assert 1 <= opened.model.default_rows <= 256
    with contextlib.closing(samples):  # type: ignore[type-var]
        pass
    assert generated(answers(opened, requests(opened))["r0"])
