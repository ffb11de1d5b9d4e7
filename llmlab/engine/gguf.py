"""The header of a GGUF file: metadata and tensors, read without loading the model."""

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmlab.errors import EngineError

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# Per-layer numbers are short and needed; vocabularies are long and are not.
LONGEST_ARRAY_KEPT = 4096

# Index = the number in the file; "-" are types that are gone.
FILE_TYPES = """
F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ2_XXS IQ2_XS Q2_K_S
IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 - - - TQ1_0 TQ2_0 MXFP4
"""
TENSOR_TYPES = """
F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S
IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4
"""


@dataclass(frozen=True)
class Tensor:
    name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Header:
    """`metadata` by key, a long array as None; `size_bytes` of the whole file."""

    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    size_bytes: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))

    def of_architecture(self, key: str, default: Any = None) -> Any:
        """A value under the architecture's own prefix, such as `llama.context_length`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    @property
    def parameters(self) -> int:
        return sum(math.prod(t.shape) for t in self.tensors)

    @property
    def quantization(self) -> str:
        return type_name(FILE_TYPES, self.metadata.get("general.file_type"))

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in a half-precision KV cache, over all layers."""
        layers = int(self.of_architecture("block_count", 0))
        heads = int(one_number(self.of_architecture("attention.head_count", 1)) or 1)
        width = int(self.of_architecture("embedding_length", 0)) // heads
        key = int(self.of_architecture("attention.key_length", width))
        value = int(self.of_architecture("attention.value_length", width))
        kv_heads = self.of_architecture("attention.head_count_kv", heads)
        total = sum(kv_heads) if isinstance(kv_heads, list) else layers * int(kv_heads or heads)
        return total * (key + value) * 2


def type_name(names: str, number: Any) -> str:
    words = names.split()
    return words[number] if isinstance(number, int) and 0 <= number < len(words) else "unknown"


def one_number(value: Any) -> Any:
    """The largest of a per-layer list, or the number itself."""
    return max(value, default=0) if isinstance(value, list) else value


def read_header(path: Path) -> Header:
    """Read the header of the GGUF file at `path`; EngineError where it is missing, unreadable or no GGUF."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise EngineError(f"{path} is not a GGUF file: it does not start with GGUF", HINT)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return Reader(data).header()
    except OSError as error:
        raise EngineError(f"cannot read {path}: {error.strerror or error}", HINT) from error
    except (struct.error, IndexError, KeyError, ValueError, OverflowError, MemoryError) as error:
        raise EngineError(f"{path} is not a complete GGUF file: its header cannot be read", HINT) from error


HINT = "Give --gguf a model file in GGUF format"


class Reader:
    """Walks through the bytes of a GGUF file (version 2 or 3, little-endian)."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 4

    def header(self) -> Header:
        (version,) = self.take("I")
        if version not in (2, 3):
            raise ValueError(version)
        tensors, pairs = self.take("QQ")
        metadata = dict(self.pair() for _ in range(pairs))
        return Header(metadata, tuple(self.tensors(tensors)), len(self.data))

    def take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values

    def skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self.data):
            raise IndexError(self.at)

    def string(self) -> str:
        (length,) = self.take("Q")
        start = self.at
        self.skip(length)
        return self.data[start : self.at].decode("utf-8", "replace")

    def pair(self) -> tuple[str, Any]:
        key = self.string()
        (kind,) = self.take("I")
        return key, self.value(kind)

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        return self.take(SCALARS[kind])[0]

    def array(self) -> list[Any] | None:
        kind, count = self.take("IQ")
        if kind in SCALARS:
            if count <= LONGEST_ARRAY_KEPT:
                return list(self.take(f"{count}{SCALARS[kind]}"))
            self.skip(count * struct.calcsize(f"<{SCALARS[kind]}"))
            return None
        if kind == STRING:
            self.skip_strings(count)
            return None
        for _ in range(count):
            self.value(kind)
        return None

    def skip_strings(self, count: int) -> None:
        data, at, end = self.data, self.at, len(self.data)
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
            if at > end:
                raise IndexError(at)
        self.at = at

    def tensors(self, count: int) -> Iterator[Tensor]:
        for _ in range(count):
            name = self.string()
            (dimensions,) = self.take("I")
            shape = self.take(f"{dimensions}Q")
            kind, _offset = self.take("IQ")
            yield Tensor(name, type_name(TENSOR_TYPES, kind), shape)
