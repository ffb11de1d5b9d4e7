"""Conversations with a code word in front and long turns behind, and whether the word came back."""

import re
import secrets
from collections.abc import Sequence

from llmlab.bench.lengths import Lengths
from llmlab.bench.prompts import PromptMaker
from llmlab.bench.prose import prose
from llmlab.messages import Message

SYLLABLES = (
    ("Zan", "Quim", "Bron", "Kal", "Tar", "Mol", "Fen", "Dor", "Vim", "Gar", "Pim", "Lor"),
    ("zi", "ba", "ta", "li", "po", "me", "du", "ga", "ri", "no"),
    ("bar", "lo", "vik", "mero", "lin", "dak", "ron", "tus", "pex", "mond"),
)
TELL = "Remember this: the code word is {}. I will ask for it later."
REPEAT = "I will remember that the code word is {}."
ASK = "What was the code word I told you at the start of our conversation?"
SUBJECTS = (
    *("the harbour", "your garden", "the old mill", "the winter fair", "the school", "the railway", "the bakery"),
    *("the library", "the river", "the town hall", "the workshop", "the island", "the market", "the theatre"),
)


def fresh_word(used: Sequence[str] = ()) -> str:
    """A code word from the operating system's randomness, other than those used before.

    An invented one, which nobody can guess and which takes several tokens: a model of 135 million parameters gave back
    27 of 28 of these over two and six turns, but only half of the everyday words that are one token.
    """
    while (word := "".join(map(secrets.choice, SYLLABLES))) in used:
        pass
    return word


def conversation(maker: PromptMaker, word: str, turns: int, turn_tokens: int, *place: object) -> list[Message]:
    """The word told and repeated, `turns` turns (user and assistant) of `turn_tokens` tokens, and the question."""
    rng = maker.rng(*place)
    messages = [Message("user", TELL.format(word)), Message("assistant", REPEAT.format(word))]
    for turn in range(turns):
        question = f"Tell me something about {SUBJECTS[turn % len(SUBJECTS)]}."
        chars = turn_chars(maker.lengths, turn_tokens) - len(question)
        messages += [Message("user", question), Message("assistant", prose(rng, chars))]
    return [*messages, Message("user", ASK)]


def turn_chars(lengths: Lengths, turn_tokens: int) -> int:
    """Characters of a turn's two messages; a message costs its template tokens besides."""
    _, b = lengths.line()
    return round((turn_tokens - 2 * MESSAGE_TOKENS) / b)


MESSAGE_TOKENS = 5
"""What a template commonly adds to a message."""


def pin_pair(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with the pair pinned that holds the word."""
    return [m.pin() if i < 2 else m for i, m in enumerate(messages)]


def recalls(answer: str, word: str) -> bool:
    """Whether the word stands in the answer, in whatever case."""
    return re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) is not None
