"""How many tokens a text will cost, guessed without the model's tokenizer, and the ratio that corrects the guess."""

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters, ascii_uppercase, digits, punctuation
from typing import Any

from llmlab.messages import Message

RATIO_MIN, RATIO_MAX = 0.5, 3.0
"""How far a tokenizer may be from the estimate before the figures are no longer believed."""

MESSAGE_TOKENS = 5
"""Template tokens around one message: `<|im_start|>`, role, newline, `<|im_end|>`, newline; Llama 3 has five too."""

CONVERSATION_TOKENS = 4
"""Template tokens after the last message: the start of the answer that is asked for."""

MEDIA_TOKENS = 768
"""An image or sound is not text. Servers count 256 to some 1,500 for a picture; its base64 would say 100,000."""

# Hundredths of a token. Fitted to four byte-pair vocabularies of 32,000 to 131,000 entries over prose, Markdown, code,
# JSON, logs and tables; words and runs of punctuation carry most of the cost, so code is not taken for prose.
WORD, LETTER, CAPITAL, DIGIT = 80, 5, 25, 110
LONG_RUN = 250  # every 14 letters without a break: compounds, hashes, base64
MARK_RUN, MARK = 70, 20
SPACE, LINE, CONTROL = 8, 50, 100
LONG_RUN_LETTERS = b"a" * 14

_LETTERS = bytes(ord("a") if chr(b) in ascii_letters else ord(" ") for b in range(256))
_MARKS = bytes(ord(".") if chr(b) in punctuation else ord(" ") for b in range(256))
_CAPITALS, _DIGITS = ascii_uppercase.encode(), digits.encode()

# First code point of a block and the hundredths one character of it costs, by the dearer half of the vocabularies:
# the scripts of small languages and emoji are spelled in bytes.
_BLOCKS = (
    (0x80, 100),  # Latin-1 signs
    (0xC0, 150),  # Latin letters with marks
    (0x250, 150),  # phonetic letters, combining marks
    (0x370, 90),  # Greek
    (0x400, 65),  # Cyrillic
    (0x530, 120),  # Armenian
    (0x590, 100),  # Hebrew
    (0x600, 85),  # Arabic
    (0x700, 130),  # Syriac and others
    (0x900, 105),  # Devanagari
    (0x980, 130),  # the other scripts of India
    (0xE00, 110),  # Thai
    (0xE80, 150),  # Lao, Tibetan, Burmese, Georgian, Ethiopic, Khmer
    (0x1E00, 150),  # Latin letters with two marks: Vietnamese
    (0x1F00, 150),  # old Greek
    (0x2000, 100),  # dashes, quotes, bullets, currency
    (0x2100, 150),  # letter-like, arrows, mathematics
    (0x2500, 90),  # lines and boxes
    (0x2600, 200),  # symbols, dingbats
    (0x2E80, 100),  # Chinese, Japanese, Korean
    (0xA000, 150),  # Yi and others
    (0xAC00, 110),  # Hangul
    (0xD7B0, 200),  # private use
    (0xF900, 150),  # rarer Chinese characters, presentation forms
    (0xFE00, 100),  # variation selectors, full width
    (0x10000, 250),  # emoji and everything rarer
)
_STARTS = tuple(start for start, _ in _BLOCKS)


def estimate_tokens(text: str) -> int:
    """Tokens of `text`, uncalibrated, template not included.

    English prose comes out at about 4 characters per token; digits, punctuation, other scripts and emoji cost more,
    and Chinese, Japanese and Korean are put at one per character, which errs high. Appending text never lowers it.
    """
    hundredths = _ascii_hundredths(text.encode("ascii", "ignore"))
    if not text.isascii():
        hundredths += sum(
            times * _BLOCKS[bisect_right(_STARTS, ord(character)) - 1][1]
            for character, times in Counter(text).items()
            if character > "\x7f"
        )
    return -(-hundredths // 100)


def _ascii_hundredths(raw: bytes) -> int:
    """Each count here can only grow when `raw` grows; all of them run in C, a megabyte takes some milliseconds."""
    letters = raw.translate(_LETTERS)
    marks = raw.translate(_MARKS)
    n_letters, n_marks = letters.count(b"a"), marks.count(b".")
    n_digits = len(raw) - len(raw.translate(None, _DIGITS))
    n_spaces, n_lines = raw.count(b" "), raw.count(b"\n") + raw.count(b"\t")
    n_controls = len(raw) - n_letters - n_marks - n_digits - n_spaces - n_lines - raw.count(b"\r")
    return (
        WORD * len(letters.split())
        + LETTER * n_letters
        + LONG_RUN * letters.count(LONG_RUN_LETTERS)
        + CAPITAL * (len(raw) - len(raw.translate(None, _CAPITALS)))
        + DIGIT * n_digits
        + MARK_RUN * len(marks.split())
        + MARK * n_marks
        + SPACE * n_spaces
        + LINE * n_lines
        + CONTROL * n_controls
    )


def estimate_message(message: Message) -> int:
    """Uncalibrated tokens of one message with its template tokens; tool calls and the like count by their JSON."""
    tokens = MESSAGE_TOKENS + estimate_tokens(message.content)
    return tokens + _extra_tokens(message.extra) if message.extra else tokens


def estimate_messages(messages: Sequence[Message]) -> int:
    """Uncalibrated tokens of a whole prompt, template included: what `calls.prompt_tokens_estimate` holds."""
    return sum(map(estimate_message, messages)) + CONVERSATION_TOKENS if messages else 0


def _extra_tokens(extra: Mapping[str, Any]) -> int:
    tokens = 0
    rest = {}
    for key, value in extra.items():
        if key == "images" and isinstance(value, list):
            tokens += MEDIA_TOKENS * len(value)
        elif key == "content" and isinstance(value, list):
            tokens += sum(map(_part_tokens, value))
        else:
            rest[key] = value
    return tokens + (estimate_tokens(json.dumps(rest, ensure_ascii=False, default=str)) if rest else 0)


def _part_tokens(part: object) -> int:
    """One entry of OpenAI's `content` list: text by its text, anything else as a picture or a sound."""
    text = part.get("text") if isinstance(part, Mapping) else part
    return estimate_tokens(text) if isinstance(text, str) else MEDIA_TOKENS


@dataclass(frozen=True, slots=True)
class Estimator:
    """The estimate times `ratio`, the model's own tokens per estimated token (see `calibrate`); 1.0 is uncalibrated.

    Keep one estimator for a conversation: another ratio moves the cut of `budget.fit`, and so breaks a cached prefix.
    """

    ratio: float = 1.0

    def tokens(self, estimate: int) -> int:
        """An uncalibrated estimate, corrected and rounded up."""
        return math.ceil(estimate * self.ratio - 1e-9)

    def message(self, message: Message) -> int:
        return self.tokens(estimate_message(message))

    def messages(self, messages: Sequence[Message]) -> int:
        return self.tokens(estimate_messages(messages))


def calibrate(pairs: Iterable[tuple[int, int]]) -> float:
    """The ratio of a model from (uncalibrated estimate, prompt tokens read) of its uncut calls; 1.0 without pairs.

    It is the median of the calls' ratios, each call weighed by its estimate up to 256 tokens. A plain median would
    follow many short calls, whose ratio is mostly template (a default system prompt makes 14 tokens 35); least squares
    would follow the one longest call, which is the one a server cuts. Half of the weight must be wrong to spoil this.
    Between two middles the higher is taken: too high drops a turn early, too low is refused. Clipped to 0.5 … 3.
    """
    weighed = sorted(
        ((read / estimate, min(estimate, 256)) for estimate, read in pairs if estimate > 0 and read > 0), reverse=True
    )
    half = sum(weight for _, weight in weighed) / 2
    reached = 0
    for ratio, weight in weighed:
        reached += weight
        if reached >= half:
            return min(max(ratio, RATIO_MIN), RATIO_MAX)
    return 1.0
