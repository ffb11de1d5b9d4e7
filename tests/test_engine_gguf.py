"""The header of a GGUF file, and the name and card made of it."""

import struct
from pathlib import Path
from typing import Any

import pytest

from llmlab.engine.card import Card, name_of, short_count
from llmlab.engine.gguf import Header, read_header
from llmlab.errors import EngineError


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, value: Any) -> bytes:
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if all(isinstance(item, str) for item in value):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return text(key) + struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)


def tensor(name: str, shape: tuple[int, ...], kind: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)


METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny Llama 1.1B (Chat)",
    "general.file_type": 15,
    "llama.context_length": 2048,
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.ggml.token_type": [1] * 5000,
    "tokenizer.ggml.add_bos_token": False,
    "llama.rope.freq_base": 10000.0,
}
TENSORS = [tensor("token_embd.weight", (64, 3), 8), tensor("output_norm.weight", (64,), 0)]


def write(path: Path, metadata: dict[str, Any] = METADATA, version: int = 3) -> Path:
    pairs = b"".join(pair(key, value) for key, value in metadata.items())
    head = b"GGUF" + struct.pack("<IQQ", version, len(TENSORS), len(metadata))
    path.write_bytes(head + pairs + b"".join(TENSORS) + bytes(64))
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_the_header_is_read(tmp_path: Path, version: int) -> None:
    header = read_header(write(tmp_path / "tiny.gguf", version=version))
    assert header.metadata["tokenizer.ggml.tokens"] is None
    assert header.metadata["tokenizer.ggml.token_type"] is None
    assert header.metadata["tokenizer.ggml.add_bos_token"] is False
    assert header.architecture == "llama"
    assert header.quantization == "Q4_K_M"
    assert header.parameters == 64 * 3 + 64
    assert [(t.name, t.type, t.shape) for t in header.tensors] == [
        ("token_embd.weight", "Q8_0", (64, 3)),
        ("output_norm.weight", "F32", (64,)),
    ]
    assert header.size_bytes == (tmp_path / "tiny.gguf").stat().st_size


def test_bytes_of_the_kv_cache(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "tiny.gguf"))
    assert header.kv_bytes_per_token == 2 * 2 * (8 + 8) * 2
    per_layer = {**METADATA, "llama.attention.head_count_kv": [2, 0], "llama.attention.key_length": 16}
    assert read_header(write(tmp_path / "other.gguf", per_layer)).kv_bytes_per_token == 2 * (16 + 8) * 2


def test_a_file_cut_anywhere_in_its_header_is_one_clear_line(tmp_path: Path) -> None:
    whole = write(tmp_path / "tiny.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(0, len(whole) - 64, 97):
        cut.write_bytes(whole[:size])
        with pytest.raises(EngineError) as caught:
            read_header(cut)
        assert str(cut) in caught.value.what and "--gguf" in str(caught.value.hint)


def test_a_file_of_something_else_is_one_clear_line(tmp_path: Path) -> None:
    other = tmp_path / "model.gguf"
    for content in (b"root:x:0:0:root", b"GGUF", b"GGUF" + b"\xff" * 4000, b"GGUF\x03\0\0\0" + b"\xff" * 16, b""):
        other.write_bytes(content)
        with pytest.raises(EngineError, match="GGUF"):
            read_header(other)
    with pytest.raises(EngineError, match="No such file"):
        read_header(tmp_path / "missing.gguf")
    with pytest.raises(EngineError, match="cannot read"):
        read_header(tmp_path)


@pytest.mark.parametrize(
    ("general_name", "file_name", "name"),
    [
        ("Qwen2.5 0.5B Instruct", "x.gguf", "qwen2.5-0.5b-instruct:latest"),
        ("", "My Model.Q4_K_M.gguf", "my-model.q4_k_m:latest"),
        (None, "sha256-" + "ab" * 32, "gguf-abababababab:latest"),
        (None, "sha256:" + "cd" * 32, "gguf-cdcdcdcdcdcd:latest"),
        ("  ../..  ", "x", "model:latest"),
        ("模型", "x", "model:latest"),
    ],
)
def test_names_of_own_files(general_name: str | None, file_name: str, name: str) -> None:
    header = Header({} if general_name is None else {"general.name": general_name}, (), 0)
    assert name_of(header, Path(file_name)) == name


async def test_an_ollama_blob_has_its_digest_in_its_name(tmp_path: Path) -> None:
    card = Card.of_file(write(tmp_path / f"sha256-{'ab' * 32}"), 4096)
    assert await card.digest() == "ab" * 32
    assert card.name == "tiny-llama-1.1b-chat:latest"
    assert card.is_called("Tiny-Llama-1.1B-Chat") and card.is_called("tiny-llama-1.1b-chat:latest")
    assert not card.is_called("tiny-llama-1.1b-chat:1b")
    assert card.window() == 2048 and card.window(300) == 512


async def test_capabilities_are_what_the_template_knows(tmp_path: Path) -> None:
    plain = Card.of_file(write(tmp_path / "plain.gguf"), 4096)
    assert plain.capabilities == ["completion"]
    template = "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}"
    able = Card.of_file(write(tmp_path / "able.gguf", {**METADATA, "tokenizer.chat_template": template}), 4096)
    assert able.capabilities == ["completion", "thinking"]
    assert able.show()["template"] == template
    assert "tokenizer.chat_template" not in able.show()["model_info"]
    assert len(await able.digest()) == 64


@pytest.mark.parametrize(
    ("number", "short"), [(134515008, "134.52M"), (7_241_732_096, "7.2B"), (999, "999"), (22_700_000, "22.70M")]
)
def test_parameter_counts_are_written_as_ollama_writes_them(number: int, short: str) -> None:
    assert short_count(number) == short
