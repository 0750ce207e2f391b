"""The configs of recipe files in the published layout open as the file's family, with its shift and attention."""

from __future__ import annotations

import json

import pytest

from dare_bench import recipes
from dare_bench.errors import CheckpointError
from dare_bench.loading import family_of
from dare_bench.registry import registry

QWEN3, QWEN2 = ("a2d-qwen3", "A2DQwen3LMHeadModel"), ("a2d-qwen2", "A2DQwen2LMHeadModel")
PUBLISHED = {  # model_type and architecture of config.json, what a state predicts, parameters in billions
    "qwen3-0.6b-diffusion-mdlm": (*QWEN3, "same", 0.60),
    "qwen3-0.6b-diffusion-bd3lm": (*QWEN3, "same", 0.60),
    "qwen2.5-coder-0.5b-diffusion-mdlm": (*QWEN2, "same", 0.49),
    "qwen2.5-coder-0.5b-diffusion-bd3lm": (*QWEN2, "same", 0.49),
    "open-dcoder-0.5b": ("qwen2", "Qwen2ForCausalLM", "next", 0.49),
    "fast-dllm-v2-1.5b": ("Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM", "next", 1.54),
    "fast-dllm-v2-7b": ("Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM", "next", 7.62),
    "trado-4b-instruct": ("sdar", "SDARForCausalLM", "same", 4.41),
    "trado-8b-instruct": ("sdar", "SDARForCausalLM", "same", 8.19),
    "trado-8b-thinking": ("sdar", "SDARForCausalLM", "same", 8.19),
    "dream-coder-7b-instruct": ("Dream", "DreamModel", "next", 7.62),
    "diffucoder-7b-cpgrpo": ("Dream", "DreamModel", "next", 7.62),
    "d3llm-dream": ("Dream", "DreamModel", "next", 7.62),
    "d3llm-coder": ("Dream", "DreamModel", "next", 7.62),
    "d3llm-llada": ("llada", "LLaDAModelLM", "same", 8.02),
    "illada-8b-base": ("illada", "ILLaDAForCausalLM", "same", 7.62),
    "illada-8b-instruct": ("illada", "ILLaDAForCausalLM", "same", 7.62),
}
BY_NAME = ("open-dcoder-0.5b",)
"""Checkpoints whose config.json is that of another family: they need --family."""


@pytest.fixture(params=PUBLISHED)
def checkpoint(request):
    return request.param


@pytest.fixture
def folder(checkpoint, tmp_path):
    """A folder with the name of the checkpoint and its config.json."""
    file, (model_type, architecture, *_) = recipes.load(checkpoint), PUBLISHED[checkpoint]
    folder = tmp_path / file.model.rpartition("/")[2]
    folder.mkdir()
    config = {**file.config, "model_type": model_type, "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_published_config_resolves_to_the_family_of_its_recipes(checkpoint, folder):
    file = recipes.load(checkpoint)
    if checkpoint not in BY_NAME:
        assert family_of(folder).name == file.family
        return
    tokens = {"added_tokens": [{"id": 3, "content": "<M>"}]}
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(CheckpointError, match=f"give --family NAME.*{file.family}"):
        family_of(folder)


def test_a_config_has_the_published_size_and_shift(checkpoint):
    file, (*_, predicts, billions) = recipes.load(checkpoint), PUBLISHED[checkpoint]
    opened = registry().get("family", file.family).load().described(file.config)
    assert opened.spec.predicts == predicts
    weights = {weight.data_ptr() or id(weight): weight.numel() for weight in opened.network.parameters()}
    assert sum(weights.values()) / 1e9 == pytest.approx(billions, abs=0.006)
