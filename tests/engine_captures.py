"""What real Ollama servers answered, and the harbour text that they were asked about."""

import json
import os
from pathlib import Path
from typing import Any

SENTENCES = (
    "The harbour at Lindum was dredged in the spring of that year and the barges waited outside for eleven days.",
    "A clerk named Oswin kept the ledger of tolls and wrote every figure twice, once in black and once in red ink.",
    "When the river froze the carters moved the grain by sledge and charged a shilling more for every mile.",
    "The mill above the weir burned down in autumn and was rebuilt with a slate roof and two new wheels.",
    "Nobody in the town trusted the bridge, so they crossed it one at a time and never with a loaded cart.",
)


def harbour(first: int, last: int) -> str:
    """Numbered sentences from `first` up to, but not including, `last`."""
    return " ".join(f"({n}) {SENTENCES[n % len(SENTENCES)]}" for n in range(first, last))


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


# 1,458 tokens with the template.
LONG = [user(harbour(100, 150) + "\nIn one sentence: what burned down?")]


def conversation() -> list[dict[str, Any]]:
    """1,726 tokens with the template; 478 of them are left in a window of 512."""
    said = [user(f"Remember this: the code word is ZANZIBAR-77. {harbour(0, 5)}")]
    said.append({"role": "assistant", "content": "Understood. The code word is noted."})
    for part in range(1, 8):
        said.append(user(f"Part {part}. {harbour(part * 10, part * 10 + 7)}"))
        said.append({"role": "assistant", "content": f"Noted part {part}."})
    said.append(user("What is the code word I told you in my first message? Reply with the code word only."))
    return said


# 1,327 tokens with the template; 258 of them are left in a window of 512.
ONE_LONG = [user(f"The code word is ZANZIBAR-77. {harbour(0, 47)} What is the code word?")]


def captures() -> dict[str, dict[str, Any]]:
    """The recorded answers by name; empty where the recordings are not at hand."""
    beside = Path(__file__).parents[2] / "shared" / "captures"
    path = Path(os.environ.get("LLMLAB_CAPTURES", beside)) / "ollama-0.32.15.jsonl"
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")
    return {entry["name"]: entry for entry in map(json.loads, filter(None, lines))}
