"""Text that others wrote, made harmless for the terminal it is shown on."""

import json
from math import isfinite
from typing import Any

# A terminal obeys C0 and C1 control characters, and reads right-to-left overrides; a model must not drive it. A next
# line (U+0085) is only a line end and part of the text.
_OBEYED = (*range(32), *range(127, 133), *range(134, 160), *range(8234, 8239), *range(8294, 8298))
_HARMLESS = dict.fromkeys(_OBEYED, "�") | {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): ""}
_ESCAPED = {code: f"\\u{code:04x}" for code in (*_OBEYED, 133) if code >= 127}


def printable(text: str) -> str:
    """`text` with everything that a terminal would obey made harmless; markup and emoji codes stay as they are."""
    return text.translate(_HARMLESS)


def printable_line(text: str) -> str:
    """`text` on one line, every control character a space; unlike `errors.one_line` it is not cut."""
    return "".join(c if c.isprintable() else " " for c in text)


def json_text(value: Any, indent: int | None = None) -> str:
    """`value` as JSON that reads back unchanged and drives no terminal; numbers that JSON does not know are null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return text.translate(_ESCAPED)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value
