"""The make-believe model of the fake server: how it counts, cuts, remembers and answers. No I/O, no clock."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NUM_KEEP = 4
PROSE = (
    "the river carried grain salt and slate past seven mills before noon while every clerk along its bank wrote "
    "down what he saw in a narrow book bound with blue thread"
)
WORDS = PROSE.split()
CODE_WORD = re.compile(r"code word is ([^\s<>.,!?]+)")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Everything the fake server does, in known figures.

    Speed: `load_ns` each (re)load takes; `prefill_tokens_per_s` for tokens not cached; `decode_gap_ns` between two
    tokens of a slot; `share` is how much each further busy slot lengthens that gap (0: not at all, 1: the total speed
    is fixed); `depth_cost` lengthens prefill and gaps by that share for each 1,000 prompt tokens; `first_prefill_ns`
    is added once, to the first prefill after a load.

    Window and queue: `slots`; `queue_bound` calls may wait, then 503; `window` is loaded whatever was asked;
    `window_busy` is the window of a call that starts while another one runs; `model_context` clamps num_ctx.

    Cache: `reuse_prompts` prompts are remembered (0: no reuse); `reports_cached` adds `prompt_eval_cached_count`.

    Answers: one piece is one token, `answer_tokens` long unless num_predict is less; `stop_after` ends it earlier
    (with an end token that is counted too); `thinking_tokens` come first unless `think` is false, which
    `refuses_no_think` answers with 400; `mute` sends tokens without text; `forgets` never knows the code word;
    `ignores_system` reads no system message.

    Wire: `counts` (False: a done line without figures); `timed_batch` reports prefill time of the last so many tokens
    only; `honours_truncate`; `refusal_counts` (False: a 400 in words only); `openai_only` answers 404 under /api, and
    `absent` are further paths that do.

    Faults, by the number of the chat call from 0 (`faults`), or for all others (`fault`): `refuse` 500, `busy` 503,
    `die` in mid-answer, `error_line` in the stream, `no_done`, `hang`, `endless` whatever num_predict says, `unload`
    the model first, `unload_after`wards.
    """

    model: str = "fake:1b"
    version: str = "0.32.15"
    load_ns: int = 0
    prefill_tokens_per_s: float = 10_000.0
    decode_gap_ns: int = 5_000_000
    share: float = 0.0
    depth_cost: float = 0.0
    first_prefill_ns: int = 0
    slots: int = 1
    queue_bound: int = 512
    window: int | None = None
    window_busy: int | None = None
    model_context: int = 8192
    reuse_prompts: int = 8
    reports_cached: bool = False
    chars_per_token: int = 4
    answer_tokens: int = 64
    stop_after: int | None = None
    thinking_tokens: int = 0
    refuses_no_think: bool = False
    mute: bool = False
    forgets: bool = False
    ignores_system: bool = False
    counts: bool = True
    timed_batch: int | None = None
    honours_truncate: bool = True
    refusal_counts: bool = True
    openai_only: bool = False
    absent: tuple[str, ...] = ()
    fault: str | None = None
    faults: Mapping[int, str] = field(default_factory=dict)
    other_loaded: tuple[str, ...] = ()
    size_bytes: int = 100_000_000
    size_vram_bytes: int = 100_000_000


class TooLong(Exception):
    """The prompt does not fit and may not be cut."""

    def __init__(self, prompt_tokens: int, window: int) -> None:
        super().__init__(f"{prompt_tokens} tokens into {window}")
        self.prompt_tokens = prompt_tokens
        self.window = window


def message_tokens(message: Mapping[str, Any], chars_per_token: int) -> list[str]:
    """One token opens a message, one closes it, and each `chars_per_token` characters between are one more."""
    text = str(message.get("content") or "")
    body = [text[i : i + chars_per_token] for i in range(0, len(text), chars_per_token)]
    return [f"<{message.get('role', '')}>", *body, "<end>"]


def prompt_tokens(messages: Sequence[Mapping[str, Any]], chars_per_token: int = 4) -> list[str]:
    """The tokens of a whole prompt: its messages and the opening of the answer."""
    return [t for m in messages for t in message_tokens(m, chars_per_token)] + ["<assistant>"]


def read_prompt(
    messages: Sequence[Mapping[str, Any]], window: int, truncate: bool = True, chars_per_token: int = 4
) -> list[str]:
    """The tokens the model reads: whole messages go from the front, then the prompt is cut to half the window.

    System messages and the last message stay, as with Ollama. Raises TooLong instead where `truncate` is false.
    """
    sent = prompt_tokens(messages, chars_per_token)
    if len(sent) < window:
        return sent
    if not truncate:
        raise TooLong(len(sent), window)
    system = [m for m in messages if m.get("role") == "system"]
    rest = [m for m in messages if m.get("role") != "system"]
    for start in range(len(rest)):
        kept = prompt_tokens([*system, *rest[start:]], chars_per_token)
        if len(kept) < window:
            return kept
    half = window - (window - NUM_KEEP) // 2
    return [*kept[:NUM_KEEP], *kept[-(half - NUM_KEEP) :]]


def common_prefix(a: Sequence[str], b: Sequence[str]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))


class PrefixCache:
    """The prompts read last; a new one need not be read again as far as it begins like one of them."""

    def __init__(self, prompts: int) -> None:
        self.prompts = prompts
        self.kept: list[list[str]] = []

    def cached(self, tokens: Sequence[str]) -> int:
        """Tokens that need no prefill; the last one is always read again."""
        best = max((common_prefix(tokens, old) for old in self.kept), default=0)
        return min(best, len(tokens) - 1)

    def keep(self, tokens: Sequence[str]) -> None:
        if self.prompts:
            self.kept = [*self.kept, list(tokens)][-self.prompts :]

    def clear(self) -> None:
        self.kept = []


def answer(figures: Figures, messages: Sequence[Mapping[str, Any]], read: Sequence[str]) -> Iterator[str]:
    """The answer's pieces, one token each: the code word where it was asked for and read, else endless prose."""
    asked = str(messages[-1].get("content") or "")
    if "code word" in asked and "?" in asked:
        found = CODE_WORD.search("".join(read))
        known = found and not figures.forgets
        words = f"The code word is {found.group(1)}." if found and known else "You have not told me any word."
        yield from (word if i == 0 else f" {word}" for i, word in enumerate(words.split()))
        return
    count = 0
    while True:
        yield f" {WORDS[count % len(WORDS)]}" if count else WORDS[0].capitalize()
        count += 1
