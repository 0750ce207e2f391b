"""Small random autoregressive checkpoints as transformers saves them: a Llama whose tokenizer adds BOS, and a GPT-2 in
the layout of the published one, without BOS, the inner network's name and the tied head."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = [
    "Question: what is 12 + 7? Answer: 19\n",
    "The quick brown fox jumps over the lazy dog, twice.\n\n",
    "Natalia sold 48 clips in April and half as many in May. #### 72\n",
]
CHAT = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


def tokenizer(*, bos: bool, vocab: int = 384) -> PreTrainedTokenizerFast:
    """A byte-level BPE; with ``bos`` it begins every text with ``<s>``."""
    special = ["<s>", "</s>"] if bos else ["<|endoftext|>"]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet)
    raw.train_from_iterator(TEXT, trainer)
    if bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", raw.token_to_id("<s>"))]
        )
    names = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT} if bos else {"eos_token": special[0]}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **names)


def _init(network: torch.nn.Module, seed: int) -> None:
    """Weights so large that the next token depends on the text."""
    generator = torch.Generator().manual_seed(seed)
    for weight in network.parameters():
        if weight.ndim > 1:
            weight.data.normal_(0.0, 0.3, generator=generator)


def make_llama(folder: Path, *, positions: int = 512, seed: int = 0) -> Path:
    """A Llama of two layers, with a generation_config.json that asks for sampling."""
    tok = tokenizer(bos=True)
    config = LlamaConfig(
        vocab_size=len(tok),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        bos_token_id=tok.bos_token_id,
        eos_token_id=tok.eos_token_id,
    )
    network = LlamaForCausalLM(config)
    _init(network, seed)
    network.save_pretrained(folder)
    tok.save_pretrained(folder)
    generation = {"eos_token_id": tok.eos_token_id, "do_sample": True, "temperature": 0.6, "top_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def make_gpt2(folder: Path, *, positions: int = 512, seed: int = 1) -> Path:
    """A GPT-2 of two layers in the published names: no ``transformer.`` before them, no head of its own."""
    tok = tokenizer(bos=False)
    config = GPT2Config(
        vocab_size=len(tok),
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=positions,
        bos_token_id=tok.eos_token_id,
        eos_token_id=tok.eos_token_id,
    )
    network = GPT2LMHeadModel(config)
    _init(network, seed)
    network.save_pretrained(folder)
    tok.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    names = {name: name.removeprefix("transformer.") for name in state if name != "lm_head.weight"}
    save_file({short: state[name] for name, short in names.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder
