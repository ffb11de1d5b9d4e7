"""The card of the model: what the engine says of it in /api/tags, /api/show and /api/ps."""

import asyncio
import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmlab.engine.gguf import Header, read_header
from llmlab.engine.runner import Runner
from llmlab.engine.weights import SMOLLM2
from llmlab.engine.window import padded

# Plain ChatML, as Ollama renders SmolLM2 with its own template language: the same counts, no default system prompt.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
FAR_FUTURE = "2318-01-01T00:00:00Z"


@dataclass
class Card:
    """One model file under one name.

    `num_ctx` is the window of requests that name none; `template` replaces the model's own where given.
    """

    path: Path
    header: Header
    name: str
    num_ctx: int
    template: str | None = None
    known_digest: str | None = None

    @classmethod
    def of_default(cls, path: Path, num_ctx: int) -> "Card":
        return cls(path, read_header(path), SMOLLM2.name, num_ctx, CHATML, SMOLLM2.sha256)

    @classmethod
    def of_file(cls, path: Path, num_ctx: int) -> "Card":
        header = read_header(path)
        blob = re.fullmatch(r"sha256[-:]([0-9a-f]{64})", path.name)
        return cls(path, header, name_of(header, path), num_ctx, known_digest=blob[1] if blob else None)

    def is_called(self, name: str) -> bool:
        return with_tag(name) == with_tag(self.name)

    async def digest(self) -> str:
        """sha256 of the file; reading a large one takes seconds, so only once."""
        if self.known_digest is None:
            self.known_digest = await asyncio.to_thread(sha256, self.path)
        return self.known_digest

    @property
    def context_length(self) -> int | None:
        length = self.header.of_architecture("context_length")
        return int(length) if length else None

    def window(self, num_ctx: int | None = None) -> int:
        """The window to load for a request that names `num_ctx`, or none."""
        return padded(self.num_ctx if num_ctx is None else num_ctx, self.context_length)

    @property
    def chat_template(self) -> str:
        return self.template or str(self.header.metadata.get("tokenizer.chat_template") or CHATML)

    @property
    def thinks(self) -> bool:
        """Whether the template has a place for thinking: then llama.cpp sends it apart from the answer."""
        return "reasoning_content" in self.chat_template

    @property
    def capabilities(self) -> list[str]:
        """What can be asked for; the engine passes no tools on."""
        return ["completion", "thinking"] if self.thinks else ["completion"]

    @property
    def modified_at(self) -> str:
        return datetime.fromtimestamp(self.path.stat().st_mtime, UTC).isoformat().replace("+00:00", "Z")

    @property
    def details(self) -> dict[str, Any]:
        header = self.header
        return {
            "parent_model": "",
            "format": "gguf",
            "family": header.architecture,
            "families": [header.architecture],
            "parameter_size": short_count(header.parameters),
            "quantization_level": header.quantization,
        }

    async def tag(self) -> dict[str, Any]:
        """The entry of /api/tags."""
        return {
            "name": self.name,
            "model": self.name,
            "modified_at": self.modified_at,
            "size": self.header.size_bytes,
            "digest": await self.digest(),
            "details": {
                **self.details,
                "context_length": self.context_length,
                "embedding_length": self.header.of_architecture("embedding_length"),
            },
            "capabilities": self.capabilities,
        }

    async def loaded(self, runner: Runner, expires_at_s: float) -> dict[str, Any]:
        """The entry of /api/ps: `size` is the weights and the KV cache of all slots."""
        size = self.header.size_bytes + self.header.kv_bytes_per_token * runner.n_ctx * runner.plan.slots
        return {
            "name": self.name,
            "model": self.name,
            "size": size,
            "digest": await self.digest(),
            "details": self.details,
            "expires_at": timestamp(expires_at_s),
            "size_vram": size if runner.gpu else 0,
            "context_length": runner.n_ctx,
        }

    def entry(self) -> dict[str, Any]:
        """The entry of /v1/models."""
        created = int(self.path.stat().st_mtime)
        return {"id": self.name, "object": "model", "created": created, "owned_by": "library"}

    def show(self) -> dict[str, Any]:
        """The answer of /api/show."""
        metadata = {k: None if isinstance(v, list) else v for k, v in sorted(self.header.metadata.items())}
        metadata.pop("tokenizer.chat_template", None)
        return {
            "modelfile": f"# {self.name} of llmlab's embedded engine\nFROM {self.path}\n",
            "parameters": "",
            "template": self.chat_template,
            "details": self.details,
            "model_info": {**metadata, "general.parameter_count": self.header.parameters},
            "tensors": [{"name": t.name, "type": t.type, "shape": list(t.shape)} for t in self.header.tensors],
            "capabilities": self.capabilities,
            "modified_at": self.modified_at,
        }


def with_tag(name: str) -> str:
    """A model name with its tag, in lower case, as Ollama compares them."""
    return name.lower() if ":" in name.rsplit("/", 1)[-1] else f"{name.lower()}:latest"


def name_of(header: Header, path: Path) -> str:
    """`general.name`, else the file's name, in the letters a model name may have."""
    given = str(header.metadata.get("general.name") or "").strip()
    if not given:
        given = re.sub(r"^sha256[-:]([0-9a-f]{12}).*", r"gguf-\1", path.name).removesuffix(".gguf")
    plain = re.sub(r"[^a-z0-9._-]+", "-", given.lower()).strip("-._")
    return f"{plain or 'model'}:latest"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short_count(number: int) -> str:
    """134515008 → 134.52M, as Ollama writes parameter counts."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}" if unit == "B" else f"{number / size:.2f}{unit}"
    return str(number)


def timestamp(seconds: float) -> str:
    """A point in time since 1970 as RFC 3339; for ever is far in the future."""
    if seconds == float("inf"):
        return FAR_FUTURE
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
