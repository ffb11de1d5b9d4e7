"""Prompts of the bench: cold by construction, and as long as asked."""

import secrets
from dataclasses import dataclass, replace
from random import Random

from llmlab.bench.lengths import Lengths
from llmlab.bench.prose import prose
from llmlab.messages import Message

SUMMARY = "Summarise the text above in one sentence."
OTHER_ENDING = "Which people appear in the text above, and what do they do?"
THIRD_ENDING = "Which places appear in the text above, and what happens there?"
SHORTEST = 64
"""Tokens of the shortest prompt that can be made to measure."""
TOPICS = (
    *("how a canal lock works", "why bread rises", "how bees find their way home", "what makes a good bridge"),
    *("how paper is made", "why the sea is salty", "how a sailing boat can go against the wind", "what a glacier is"),
    *("how glass is blown", "why leaves change colour", "how a lighthouse was run", "what keeps a bicycle upright"),
    *("how maps were drawn", "why cats purr", "how a water mill grinds grain", "what thunder is"),
    *("how cheese is made", "why stars twinkle", "how a clock keeps time", "what an echo is"),
    *("how wool becomes cloth", "why rivers bend", "how a piano makes its sound", "what a rainbow is"),
)


def nonce() -> str:
    """Eight digits from the operating system that no earlier prompt began with."""
    return f"{10_000_000 + secrets.randbelow(90_000_000)}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A system message that begins with the nonce, a text, and a question about it.

    `fold` puts the nonce in front of the user message instead, for models that leave system messages out.
    """

    nonce: str
    text: str
    ending: str
    fold: bool = False

    @property
    def messages(self) -> list[Message]:
        rule = f"{self.nonce} is the number of this request. Answer in plain English."
        asked = f"{self.text}\n\n{self.ending}" if self.text else self.ending
        if self.fold:
            return [Message("user", f"{rule}\n\n{asked}")]
        return [Message("system", rule), Message("user", asked)]

    @property
    def chars(self) -> int:
        return sum(len(m.content) for m in self.messages)

    def restart(self) -> "Prompt":
        """The same rest after a new start."""
        return replace(self, nonce=nonce())


class PromptMaker:
    """Makes cold prompts of a wanted number of tokens; the prose follows the seed, the nonce never does."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.lengths = Lengths()
        self.fold = False

    def rng(self, *place: object) -> Random:
        """The same seed gives the same text at the same place of the plan."""
        return Random("/".join(map(str, (self.seed, *place))))

    def summary(self, tokens: int, *place: object) -> Prompt:
        """About `tokens` tokens with a request for a one-sentence summary at the end."""
        return self.prompt(self.lengths.chars(tokens), *place)

    def prompt(self, chars: int, *place: object) -> Prompt:
        """A summary prompt of exactly `chars` characters, as far as its fixed parts leave room."""
        empty = Prompt(nonce(), "x", SUMMARY, self.fold)
        return replace(empty, text=prose(self.rng(*place), chars - empty.chars + 1))

    def short(self, user: int, repeat: int) -> Prompt:
        """A request for about 100 words; no two users of a burst have the same topic."""
        topic = TOPICS[(user + 7 * repeat) % len(TOPICS)]
        return Prompt(nonce(), "", f"Write about 100 words about {topic}.", self.fold)
