"""Options of Ollama's API: checked, with Ollama's defaults, and in llama.cpp's words."""

import re
from collections.abc import Mapping
from typing import Any

from llmlab.engine.desk import FOREVER_S
from llmlab.engine.refusal import Refusal

INTEGERS = ("num_ctx", "num_predict", "num_keep", "seed", "top_k", "repeat_last_n", "mirostat")
NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "mirostat_tau",
    "mirostat_eta",
)
DEFAULTS: Mapping[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "num_keep": 4,
}
LONGEST_ANSWER_WINDOWS = 10
LARGEST = 2**31 - 1


def checked(options: Any) -> dict[str, Any]:
    """The known options of a request; one of a wrong type is a 500, as Ollama answers; unknown ones are ignored."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise Refusal(400, "options must be an object")
    known: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in INTEGERS:
            known[name] = max(-LARGEST, min(LARGEST, int(number(name, value, "integer"))))
        elif name in NUMBERS:
            known[name] = number(name, value, "float32")
        elif name == "stop":
            if not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
                raise Refusal(500, 'option "stop" must be of type array')
            known[name] = value
    return known


def number(name: str, value: Any, kind: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal(500, f'option "{name}" must be of type {kind}')
    return value


def sampling(options: Mapping[str, Any], n_ctx: int) -> dict[str, Any]:
    """What llama.cpp is asked for: `options` over the defaults, never without an end."""
    params = {**DEFAULTS, **options}
    params.pop("num_ctx", None)
    params["n_keep"] = params.pop("num_keep")
    longest = LONGEST_ANSWER_WINDOWS * n_ctx
    wanted = params.pop("num_predict", -1)
    params["n_predict"] = min(wanted, longest) if wanted > 0 else longest
    if "seed" in params:
        params["seed"] &= 0xFFFFFFFF
    return params


UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def keep_alive_s(value: Any) -> float | None:
    """Seconds of a `keep_alive`: a number of seconds or a duration such as `1h30m`; negative is for ever."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return FOREVER_S if value < 0 else float(value)
    if not isinstance(value, str):
        raise Refusal(400, "keep_alive must be a number of seconds or a duration such as 5m")
    text = value.strip().removeprefix("+")
    digits = text.removeprefix("-")
    parts = PART.findall(digits)
    if (digits != "0" and "".join(n + unit for n, unit in parts) != digits) or not digits:
        raise Refusal(400, f'keep_alive: invalid duration "{value}"')
    seconds = sum(float(n) * UNITS_S[unit] for n, unit in parts)
    return FOREVER_S if text.startswith("-") and seconds else seconds
