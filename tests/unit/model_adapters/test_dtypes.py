"""The dtype of a network that is opened without naming one."""

from __future__ import annotations

import pytest
import torch

from dare_bench.errors import UsageError
from dare_bench.model_adapters.load_arguments import TINY, pick_dtype

CPU, PUBLISHED = torch.device("cpu"), {"torch_dtype": "bfloat16"}


@pytest.fixture(params=[True, False], ids=["bfloat16 instructions", "none"])
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    able = {"avx512_bf16": request.param, "avx2": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    return bool(request.param)


def test_auto_is_the_published_dtype_where_the_cpu_is_fast_in_it(fast: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dare_bench")
    assert pick_dtype("auto", CPU, PUBLISHED, TINY) == (torch.bfloat16 if fast else torch.float32)
    assert ("computes in bfloat16, as published" in caplog.text) is fast
    assert pick_dtype("auto", CPU, {"dtype": "bfloat16"}, TINY - 1) == torch.float32, "a tiny network"
    assert pick_dtype("auto", CPU, {"dtype": "float16"}, TINY) == torch.float32
    assert pick_dtype("auto", torch.device("cuda"), {"dtype": "float16"}, 1) == torch.float16


def test_evaluations_stay_in_float32_and_say_what_is_faster(fast: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dare_bench")
    assert pick_dtype(None, CPU, PUBLISHED, TINY) == torch.float32
    assert ("--dtype auto" in caplog.text) is fast
    assert pick_dtype("bfloat16", CPU, {}, 1) == torch.bfloat16
    with pytest.raises(UsageError, match="dtype 'half' is not known; allowed: float32, "):
        pick_dtype("half", CPU, PUBLISHED, TINY)
