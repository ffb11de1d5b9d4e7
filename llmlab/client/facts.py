"""What servers say of themselves and their models: JSON in, records out; any part may be missing or odd."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from llmlab.client.deltas import whole_characters
from llmlab.model import LoadedModel, Model


def entries(body: object, key: str) -> list[dict[str, Any]]:
    """The objects of the list under `key`."""
    items = body.get(key) if isinstance(body, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def text(value: object) -> str | None:
    return whole_characters(value) if isinstance(value, str) and value else None


def whole(value: object) -> int | None:
    """A positive whole number that fits into a column."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63 else None


def part(body: object, key: str) -> Mapping[str, Any]:
    """The object under `key`, empty where there is none."""
    inner = body.get(key) if isinstance(body, dict) else None
    return inner if isinstance(inner, dict) else {}


def digest_of(value: object) -> str | None:
    digest = text(value)
    return digest.removeprefix("sha256:") if digest else None


def ollama_model(tag: Mapping[str, Any], show: Mapping[str, Any] | None = None) -> Model | None:
    """A model of /api/tags, with what /api/show adds; None without a name."""
    show = show or {}
    name = text(tag.get("name")) or text(tag.get("model"))
    if name is None:
        return None
    details = {**part(show, "details"), **part(tag, "details")}
    info = part(show, "model_info")
    length = next((whole(value) for key, value in info.items() if str(key).endswith(".context_length")), None)
    capabilities = show.get("capabilities", tag.get("capabilities"))
    return Model(
        name=name,
        digest=digest_of(tag.get("digest")),
        family=text(details.get("family")),
        parameter_size=text(details.get("parameter_size")),
        quantization=text(details.get("quantization_level")),
        context_length=length or whole(details.get("context_length")),
        size_bytes=whole(tag.get("size")),
        capabilities=tuple(map(str, capabilities)) if isinstance(capabilities, list) else None,
        modified_utc=text(tag.get("modified_at")) or text(show.get("modified_at")),
    )


def ollama_models(body: object) -> list[Model]:
    """The models of /api/tags, newest first."""
    return newest_first(filter(None, map(ollama_model, entries(body, "models"))))


def openai_models(body: object) -> list[Model]:
    """The models of /v1/models, newest first; llama-server and vLLM add lengths and sizes."""
    found = []
    for item in entries(body, "data"):
        name, meta, created = text(item.get("id")), part(item, "meta"), whole(item.get("created"))
        if name is None:
            continue
        found.append(
            Model(
                name=name,
                context_length=whole(meta.get("n_ctx_train")) or whole(item.get("max_model_len")),
                size_bytes=whole(meta.get("size")),
                modified_utc=None if created is None else utc_of(created),
            )
        )
    return newest_first(found)


def newest_first(models: Iterable[Model]) -> list[Model]:
    return sorted(models, key=lambda model: moment(model.modified_utc), reverse=True)


def moment(modified_utc: str | None) -> float:
    """Seconds since 1970 of an ISO time, whose zone may be any; 0 where there is none."""
    try:
        when = datetime.fromisoformat((modified_utc or "")[:64])
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def utc_of(seconds: int) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def ollama_loaded(body: object) -> list[LoadedModel]:
    """The models of /api/ps."""
    return [
        LoadedModel(
            name=name,
            digest=digest_of(item.get("digest")),
            size_bytes=whole(item.get("size")),
            size_vram_bytes=0 if item.get("size_vram") == 0 else whole(item.get("size_vram")),
            num_ctx=whole(item.get("context_length")),
            expires_utc=text(item.get("expires_at")),
        )
        for item in entries(body, "models")
        if (name := text(item.get("name")) or text(item.get("model")))
    ]


def lmstudio_loaded(body: object) -> list[LoadedModel]:
    """The loaded models of LM Studio's /api/v0/models."""
    return [
        LoadedModel(name=name, num_ctx=whole(item.get("loaded_context_length")))
        for item in entries(body, "data")
        if item.get("state") == "loaded" and (name := text(item.get("id")))
    ]


def props_window(body: object) -> int | None:
    """The window of each slot, from llama-server's /props."""
    return whole(part(body, "default_generation_settings").get("n_ctx")) or whole(
        body.get("n_ctx") if isinstance(body, dict) else None
    )


def version_of(body: object) -> str | None:
    """The version of Ollama's /api/version; anything that is no JSON object with a text there is not Ollama."""
    return text(body.get("version")) if isinstance(body, dict) else None


def owner_of(body: object) -> str | None:
    """Who owns the first model of /v1/models: `vllm`, `llamacpp`, `library` (Ollama), …"""
    owners = (text(item.get("owned_by")) for item in entries(body, "data"))
    return next(filter(None, owners), None)


def find_entry(body: object, name: str) -> dict[str, Any]:
    """The entry of /v1/models or /api/v0/models called `name`, else an empty one."""
    return next((item for item in entries(body, "data") if item.get("id") == name), {})


def full_name(name: str) -> str:
    """Ollama's name with its tag."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def build_of(props: object) -> str | None:
    """llama-server's build, from /props."""
    return text(props.get("build_info")) if isinstance(props, dict) else None


def ollama_one(name: str, tags: object, show: object) -> Model:
    """The model `name` out of /api/tags and its /api/show; a name without a tag means `:latest`."""
    wanted, found = full_name(name), entries(tags, "models")
    tag = next((t for t in found if wanted in (t.get("name"), t.get("model"))), {"name": name})
    return ollama_model(tag, show if isinstance(show, dict) else None) or Model(name=name)
