"""Damaged checkpoints and adapters: each is refused in one line, none is opened, whatever its files say."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dare_bench.costs.trace import find
from dare_bench.errors import CheckpointError
from dare_bench.loading import family_of, load, locate
from dare_bench.reading import MAX_BYTES

Damage = Callable[[Path], None]
DEEP = b"[" * 1000 + b"]" * 1000
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(locate(name), tmp_path / name))

    return copy


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as seen:
        load(folder)
    assert "\n" not in str(seen.value) and len(str(seen.value)) < 1000
    return str(seen.value)


def parts(file: Path) -> tuple[dict[str, Any], bytes]:
    raw = file.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    return json.loads(raw[8:end]), raw[end:]


def framed(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def lied(change: Callable[[dict[str, Any], str, str], Any]) -> Damage:
    """The weights with a header that ``change`` was made to: (entries, first and second tensor by their bytes)."""

    def damage(folder: Path) -> None:
        header, data = parts(folder / WEIGHTS)
        header.pop("__metadata__", None)
        first, second = sorted(header, key=lambda name: header[name]["data_offsets"])[:2]
        change(header, first, second)
        (folder / WEIGHTS).write_bytes(framed(json.dumps(header).encode(), data))

    return damage


def moved(at: int, by: int) -> Damage:
    def change(header: dict[str, Any], _: str, second: str) -> None:
        header[second]["data_offsets"][at] += by

    return lied(change)


def held(**fields: Any) -> Damage:
    return lied(lambda header, first, _: header[first].update(fields))


def written(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content) and None


def twice(folder: Path) -> None:
    header, data = parts(folder / WEIGHTS)
    header.pop("__metadata__", None)
    raw = json.dumps(header)
    name, entry = next(iter(header.items()))
    (folder / WEIGHTS).write_bytes(framed((raw[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}}}").encode(), data))


def fifo(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return damage


def linked(name: str, target: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return damage


def large(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).touch()
        os.truncate(folder / name, MAX_BYTES + 1)

    return damage


FILES: dict[str, tuple[Damage, str]] = {
    "header: nested": (written(WEIGHTS, framed(b'{"a": ' + DEEP + b"}")), "nested deeper than 64"),
    "header: a list": (written(WEIGHTS, framed(b"[]")), "expected a JSON object"),
    "header: no UTF-8": (written(WEIGHTS, framed(b'{"\xff": 1}')), "not UTF-8"),
    "header: longer than the file": (written(WEIGHTS, (1 << 62).to_bytes(8, "little") + b"{}"), "not a safetensors"),
    "header: written twice": (twice, "duplicate key"),
    "header: begins before the data": (held(data_offsets=[-1, 5]), "data_offsets=[-1, 5]"),
    "header: ends before it begins": (held(data_offsets=[9, 5]), "begin and end"),
    "header: one offset": (held(data_offsets=[9]), "begin and end"),
    "header: offsets of text": (held(data_offsets="09"), "data_offsets='09'"),
    "header: overlap": (lied(lambda h, a, b: h[b].update(h[a])), "overlaps"),
    "header: a hole": (lied(lambda h, a, b: h.pop(a)), "belong to no tensor"),
    "header: one byte late": (moved(0, 1), "bytes"),
    "header: one byte long": (moved(1, 1), "bytes"),
    "header: unknown dtype": (held(dtype="F31"), "dtype='F31'"),
    "header: dtype of another size": (held(dtype="F64"), "data_offsets="),
    "header: dtype of integers": (held(dtype="I16"), "is stored as I16"),
    "header: no dtype": (held(dtype=None), "dtype=None"),
    "header: negative shape": (held(shape=[-1, -5]), "shape=[-1, -5]"),
    "header: shape of floats": (held(shape=[1.0]), "shape=[1.0]"),
    "header: huge shape": (held(shape=[10**18, 10**18]), "data_offsets="),
    "header: an entry is a number": (lied(lambda h, a, b: h.update({a: 5})), "expected an object"),
    "weights: bytes behind": (lambda f: (f / WEIGHTS).open("ab").write(b"x") and None, "longer than"),
    "weights: truncated": (lambda f: os.truncate(f / WEIGHTS, 100_000), "truncated"),
    "weights: empty": (written(WEIGHTS, b""), "not a safetensors file"),
    "weights: a FIFO": (fifo(WEIGHTS), "no model.safetensors"),
    "index: a number": (written(INDEX, b"5"), "expected a JSON object"),
    "index: null": (written(INDEX, b"null"), "expected a JSON object"),
    "index: no UTF-8": (written(INDEX, b'{"weight_map": "\xff"}'), "not UTF-8"),
    "index: nested": (written(INDEX, b'{"weight_map": ' + DEEP + b"}"), "nested deeper than 64"),
    "index: map is a list": (written(INDEX, b'{"weight_map": ["a"]}'), "weight_map must be an object"),
    "index: map of numbers": (written(INDEX, b'{"weight_map": {"a": 5}}'), "lies in 5"),
    "index: another folder": (written(INDEX, b'{"weight_map": {"a": "../x.safetensors"}}'), "lies in '../x"),
    "index: empty": (written(INDEX, b'{"weight_map": {}}'), "weight_map must be an object"),
    "index: another weight": (written(INDEX, b'{"weight_map": {"a": "model.safetensors"}}'), "weight"),
    "config: nested": (written("config.json", DEEP), "nested deeper than 64"),
    "config: a FIFO": (fifo("config.json"), "no config.json"),
    "config: no UTF-8": (written("config.json", b"\xff"), "not UTF-8"),
    "config: a list": (written("config.json", b"[]"), "expected a JSON object"),
    "generation: a list": (written("generation_config.json", b"[]"), "expected a JSON object"),
    "generation: an id of text": (written("generation_config.json", b'{"eos_token_id": {"a": 1}}'), "eos_id="),
    **{
        f"{name}: a FIFO": (fifo(name), f"{name}: it is a FIFO; only regular files and folders are allowed")
        for name in (
            *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "added_tokens.json", "merges.txt"),
            *("special_tokens_map.json", "chat_template.jinja", "additional_chat_templates/a.jinja", "preprocessor"),
        )
    },
    "a device by a link": (linked("added_tokens.json", "/dev/zero"), "added_tokens.json: it is a device; only"),
    **{
        f"{name}: large": (large(name), f"{name}: it has 67,108,865 bytes, more than the limit of 67,108")
        for name in ("tokenizer.json", "added_tokens.json", "chat_template.jinja", "tokenizer.model")
    },
    "tokenizer: nested": (written("tokenizer_config.json", DEEP), "nested deeper than 64"),
    "tokenizer: no tokenizer": (written("tokenizer.json", b"{}"), "tokenizer does not open"),
    "tokenizer: nested model": (written("tokenizer.json", DEEP), "tokenizer"),
}


@pytest.mark.parametrize("damage", FILES)
def test_damaged_files_are_refused(damage: str, copied: Callable[[str], Path]) -> None:
    folder = copied("tiny-sdar")  # it reads all files, generation_config.json included
    FILES[damage][0](folder)
    assert FILES[damage][1] in refused(folder)


def test_links_to_files_and_folders_of_other_things_are_taken(copied: Callable[[str], Path]) -> None:
    """A hub cache links each name to a blob; what is no text may be large."""
    folder = copied("tiny-sdar")
    blobs = folder.with_name("blobs")
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(Path("..") / "blobs" / str(number))
    (folder / "original").mkdir()
    (folder / "gone.json").symlink_to("nowhere")
    large("consolidated.bin")(folder)
    assert load(folder).tokenizer is not None


SIZES: tuple[Any, ...] = (None, "64", True, 0, -1, 1.5, 10**12, 10**30, [], {})
NUMBERS: tuple[Any, ...] = (None, "1e-6", True, 0, -1, float("inf"), float("nan"), [], {})
FIELDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "tiny-llada": {
        **dict.fromkeys(("d_model", "n_heads", "n_layers", "vocab_size", "embedding_size"), SIZES[1:]),
        **dict.fromkeys(("rms_norm_eps", "rope_theta"), NUMBERS),
        "rope_full_precision": ("no", 1),
        "weight_tying": ("no", 1),
        "n_kv_heads": (3, "4", 0),
    },
    "tiny-dream": {
        **dict.fromkeys(("hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads"), SIZES),
        **dict.fromkeys(("rms_norm_eps", "rope_theta"), NUMBERS),
        "max_position_embeddings": (None, "8192", 0, 1e30),
        "tie_word_embeddings": ("no", None),
        "pad_token_id": ({"a": 1}, "x"),
        "mask_token_id": ("301", [301], -1, 10**9),
        "dtype": (5, ["bfloat16"], "no_such"),
        "quantization_config": ({"quant_method": "gptq"}, 5),
        "rope_scaling": (5, {"type": "yarn"}, "x"),
        "architectures": ({"DreamModel": 1}, "DreamModel", [5], 5, [["DreamModel"]]),
        "model_type": ({"a": 1}, ["Dream"], 5, None),
        "id2label": (5, [1], {"x": "y"}),
    },
    "tiny-sdar": {"head_dim": ("32", 31, 0, -2, 10**12), "block_size": ("4", 0, True, 10**30)},
    "tiny-llada2": {
        "num_experts": (None, "8", 0, 7, 10**9),
        "num_experts_per_tok": (None, 0, 9),
        "partial_rotary_factor": (0, 1.5, "0.5", 0.01),
        "routed_scaling_factor": ("2.5", float("nan"), None),
        "first_k_dense_replace": (-1, "1", None),
        "moe_intermediate_size": (0, "40", 10**12),
        "use_qk_norm": ("yes", None),
        "n_group": (3, "4"),
    },
}
CASES = [(model, name, value) for model, names in FIELDS.items() for name, values in names.items() for value in values]


@pytest.mark.parametrize(("model", "name", "value"), CASES, ids=str)
def test_damaged_fields_are_refused(model: str, name: str, value: Any, copied: Callable[[str], Path]) -> None:
    folder = copied(model)
    edit(folder / "config.json", name, value)
    refused(folder)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("rope_theta", "x", "Dream config has rope_theta='x'; it must be a finite number above 0"),
        ("rms_norm_eps", "1e-6", "rms_norm_eps='1e-6'; it must be a number above 0, at most 1"),
        ("architectures", {"a": 1}, "architectures={'a': 1}; it must be a list of names, or null"),
        ("num_hidden_layers", 10**6, "num_hidden_layers=1000000; it must be a whole number of 1 to 10,000"),
        ("num_hidden_layers", 5000, "describes 5000 layers and 0 experts in all, but the files hold"),
        ("num_attention_heads", 3, "num_attention_heads=3"),
    ],
    ids=str,
)
def test_the_message_says_what_is_allowed(name: str, value: Any, says: str, copied: Callable[[str], Path]) -> None:
    folder = copied("tiny-dream")
    edit(folder / "config.json", name, value)
    assert says in refused(folder)


def test_an_estimate_reads_the_same_files_with_the_same_care(copied: Callable[[str], Path]) -> None:
    folder = copied("tiny-sdar")
    assert find(str(folder)).network.arch.block_length == 4
    FILES["header: nested"][0](folder)
    find.cache_clear()
    with pytest.raises(CheckpointError, match="nested deeper than 64"):
        find(str(folder))
    edit(folder / "config.json", "architectures", {"a": 1})
    with pytest.raises(CheckpointError, match="must be a list of names"):
        family_of(folder)


def edit(file: Path, name: str, value: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("peft")
    from dare_bench.protocols import AdapterSettings

    model = load("tiny-dream-base")
    model.loaded.add_adapter(AdapterSettings(r=2, alpha=4, dropout=0.0, targets=("attention",)))
    folder = tmp_path_factory.mktemp("adapter") / "lora"
    model.save(folder)
    yield folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("r", value) for value in ("2", 0, -1, None, 10**12, 1.5, {})),
        *(("lora_alpha", value) for value in ("x", None, [], float("inf"))),
        ("base_model_name_or_path", 5),
        ("base_model_name_or_path", "x" * 300),
        ("target_modules", {"a": 1}),
        ("target_modules", 5),
        ("target_modules", "("),
        ("target_modules", "(a+)+$"),
        ("rank_pattern", "x"),
        ("peft_type", ["LORA"]),
        ("megatron_config", {"a": 1}),
        ("layer_replication", [[0, 10**9]]),
        ("auto_mapping", {"base_model_class": "x", "parent_library": "antigravity"}),
    ],
    ids=str,
)
def test_damaged_adapters_are_refused(name: str, value: Any, adapter: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(adapter, tmp_path / "lora"))
    load(folder)
    edit(folder / "adapter_config.json", name, value)
    refused(folder)
