"""What servers say when something is wrong, in whatever shape, as one text."""

import json

from llmlab.client.lines import parse


def unfold(value: object, depth: int = 5) -> object:
    """`value` with JSON that stands inside its strings parsed too: servers pass on each other's errors as text."""
    if depth and isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        inner = parse(value.encode("utf-8", "replace"))
        return value if inner is None else unfold(inner, depth - 1)
    if depth and isinstance(value, dict):
        return {key: unfold(inner, depth - 1) for key, inner in value.items()}
    return value


def said(value: object) -> str:
    """The readable part of an error value: a text, or the message inside objects and JSON strings."""
    value = unfold(value)
    for _ in range(8):
        if isinstance(value, list) and value:
            value = value[0]
        elif isinstance(value, dict):
            key = next((k for k in ("error", "message", "detail", "msg", "title") if value.get(k)), None)
            if key is None:
                break
            value = value[key]
        else:
            break
    if isinstance(value, str):
        return value.strip()
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def find_number(value: object, key: str, depth: int = 6) -> int | None:
    """The whole number under `key`, wherever in the (unfolded) body it stands."""
    if not depth or not isinstance(value, dict):
        return None
    number = value.get(key)
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**63:
        return number
    inner = (find_number(item, key, depth - 1) for item in value.values())
    return next((found for found in inner if found is not None), None)
