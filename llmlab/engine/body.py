"""The body of a request: JSON read as leniently and as strictly as Ollama reads it, with typed fields."""

import json
from typing import Any

from llmlab.engine.refusal import Refusal

KINDS = {str: "a string", bool: "true or false", list: "a list", dict: "an object", int: "a number"}


class Body:
    """The fields of a JSON object; a field of a wrong type is a Refusal, null is the same as missing."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    @classmethod
    def parse(cls, data: bytes) -> "Body":
        if not data.strip():
            raise Refusal(400, "missing request body")
        try:
            value = json.loads(data.decode("utf-8", "replace"), parse_constant=no_constant)
        except json.JSONDecodeError as error:
            at_end = not error.doc[error.pos :].strip()
            raise Refusal(400, "unexpected EOF" if at_end else f"invalid JSON: {error}") from None
        except (ValueError, RecursionError):
            raise Refusal(400, "invalid JSON") from None
        if not isinstance(value, dict):
            raise Refusal(400, "the request must be a JSON object")
        return cls(value)

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise Refusal(400, f"{name} must be {KINDS[kind]}")
        return value

    def model(self) -> str:
        name = self.get("model", str) or self.get("name", str)
        if not name:
            raise Refusal(400, "model is required")
        return str(name)

    def messages(self) -> list[dict[str, Any]]:
        """The messages with a role and a text each; parts of the OpenAI form are joined."""
        messages = []
        for index, given in enumerate(self.get("messages", list, [])):
            if not isinstance(given, dict):
                raise Refusal(400, f"messages[{index}] must be an object")
            role = given.get("role", "")
            if not isinstance(role, str):
                raise Refusal(400, f"messages[{index}].role must be a string")
            if given.get("images"):
                raise Refusal(400, "this model does not support images")
            messages.append({"role": role, "content": text_of(given.get("content"), index)})
        return messages


def no_constant(name: str) -> Any:
    raise ValueError(name)


def text_of(content: Any, index: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise Refusal(400, f"messages[{index}].content must be a string")
    if any(part.get("type") != "text" for part in content):
        raise Refusal(400, "this model does not support images")
    return "\n".join(str(part.get("text", "")) for part in content)
