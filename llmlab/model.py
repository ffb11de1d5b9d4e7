"""Model: what a server says of one of its models; one field per column of the table `models`."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as its server describes it; None means the server does not say.

    `digest` identifies the weights (Ollama /api/tags, without the `sha256:` prefix); `context_length` is the longest
    window the model was made for; `size_bytes` its size on disk; `capabilities` words such as `thinking`, `tools`,
    `vision` (Ollama /api/show), None where unknown.
    """

    name: str
    digest: str | None = None
    family: str | None = None
    parameter_size: str | None = None
    quantization: str | None = None
    context_length: int | None = None
    size_bytes: int | None = None
    capabilities: tuple[str, ...] | None = None
    modified_utc: str | None = None

    @property
    def id(self) -> str:
        """The same name and digest have the same id on every machine, so that merged files agree."""
        return hashlib.sha256(f"{self.name}\n{self.digest or ''}".encode()).hexdigest()[:16]

    @property
    def thinks(self) -> bool:
        return "thinking" in (self.capabilities or ())

    def row(self) -> dict[str, Any]:
        """The model as a row of `models`."""
        return {
            "id": self.id,
            "name": self.name,
            "digest": self.digest,
            "family": self.family,
            "parameter_size": self.parameter_size,
            "quantization": self.quantization,
            "context_length": self.context_length,
            "size_bytes": self.size_bytes,
            "capabilities": None if self.capabilities is None else json.dumps(list(self.capabilities)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory (Ollama /api/ps): `num_ctx` is `context_length` there; VRAM below size means CPU spill."""

    name: str
    digest: str | None = None
    size_bytes: int | None = None
    size_vram_bytes: int | None = None
    num_ctx: int | None = None
    expires_utc: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Who answers: `kind` is ollama, llmlab, llama-server, vllm, lmstudio or openai; `version` as it says, or None."""

    kind: str
    version: str | None = None
