"""Prose: plain English that does not repeat itself, exactly as many characters long as asked."""

import re
from collections.abc import Iterator
from random import Random

WORDS: dict[str, tuple[str, ...]] = {
    "who": (
        *("the baker", "a young clerk", "the miller", "our neighbour", "the old sailor", "a doctor", "the teacher"),
        *("a farmer", "the painter", "the judge", "a tall stranger", "the cook", "my uncle", "a travelling singer"),
        *("the gardener", "the printer", "a retired soldier", "the innkeeper", "the weaver", "a quiet student"),
        *("the ferryman", "the mayor", "a fisherman", "the guard", "the widow", "the carpenter", "a shy boy"),
    ),
    "did": (
        *("counted", "repaired", "painted", "sold", "described", "carried", "measured", "forgot", "borrowed"),
        *("admired", "washed", "moved", "inspected", "hid", "weighed", "collected", "dropped", "sketched"),
        *("returned", "guarded", "ordered", "shared", "covered", "opened", "examined", "lifted", "kept"),
    ),
    "thing": (
        *("the silver cups", "a wooden ladder", "twelve clay jars", "the broken clock", "an iron gate", "the maps"),
        *("a basket of pears", "the winter coats", "some old letters", "the church bell", "a pair of boots"),
        *("the spare ropes", "a heavy barrel", "the glass lamps", "three small boats", "the account books"),
        *("a load of timber", "the wheat sacks", "two brass keys", "the garden tools", "a roll of blue cloth"),
        *("the kitchen table", "an empty cage", "the stone steps", "a bundle of nails", "the wedding rings"),
    ),
    "where": (
        *("near the harbour", "behind the market", "at the edge of the forest", "beside the river", "in the cellar"),
        *("under the bridge", "across the square", "above the bakery", "at the top of the hill", "by the north gate"),
        *("in the old library", "outside the station", "along the coast road", "in the school yard", "at the mill"),
        *("on the small island", "between the two walls", "inside the barn", "next to the well", "on the stairs"),
    ),
    "when": (
        *("before sunrise", "in early spring", "after the long meeting", "on the third day", "late in the evening"),
        *("during the storm", "at the end of the week", "once the rain had stopped", "in the middle of winter"),
        *("when the bells rang", "a year later", "on market day", "shortly after lunch", "before the first snow"),
        *("while the others slept", "at low tide", "on a warm night", "in the dry season", "just before closing"),
    ),
    "like": (
        *("with great care", "without a word", "as fast as possible", "for a small fee", "with both hands"),
        *("to everyone's surprise", "out of habit", "for the second time", "in perfect order", "by mistake"),
        *("with a crooked smile", "as a favour", "in complete silence", "against all advice", "at no charge"),
    ),
    "fact": (
        *("the price of salt had doubled", "the road was closed", "no ship had arrived", "the roof still leaked"),
        *("two windows were missing", "the contract was never signed", "the water was too cold", "the bread was burnt"),
        *("nobody knew the answer", "the letter came too late", "the last train had left", "the fire was almost out"),
        *("the figures did not agree", "the gate stood open", "the wind had changed", "half the seats were empty"),
        *("the younger brother had lied", "the paint was not dry", "the well had run dry", "the dog refused to move"),
    ),
    "sort": (
        *("green", "narrow", "rusty", "bright", "heavy", "plain", "round", "dusty", "pale", "smooth", "crooked"),
        *("cheap", "empty", "striped", "hollow", "warm", "sharp", "grey", "tiny", "broad"),
    ),
    "object": (
        *("door", "cart", "hat", "bowl", "chair", "bottle", "candle", "mirror", "blanket", "wheel", "drum", "box"),
        *("coat", "bucket", "chain", "pocket", "fence", "knife", "window", "shelf"),
    ),
    "many": ("two", "three", "four", "five", "six", "seven", "nine", "ten", "eleven", "twelve", "fifteen", "twenty"),
}
FORMS = (
    "{who} {did} {thing} {where}",
    "{when}, {who} {did} {thing}",
    "{who} said that {fact}, so {who} {did} {thing} {like}",
    "because {fact}, {who} waited {where}",
    "{who} {did} {thing} and then {did} {thing} {like}",
    "although {fact}, {who} {did} {thing} {when}",
    "there were {many} {sort} things {where}, among them a {object}",
    "nobody saw how {who} {did} {thing} {when}",
    "{where}, {who} found a {sort} {object} and {did} it {like}",
    "it took {many} days until {who} {did} {thing}",
    "{who} and {who} met {where} {when}",
    "the {object} was {sort}, the {object} was {sort}, and {fact}",
    "if {fact}, asked {who}, who {did} {thing}?",
    "{many} people remembered that {who} {did} {thing} {where}",
    "{when} it became clear that {fact}",
    "{who} never {did} a {sort} {object} again, for {fact}",
    "some say {who} {did} {thing} {like}; others say that {fact}",
    "for {many} years {who} kept a {sort} {object} {where}",
    "{who} wrote down that {fact} and {did} {thing}",
    "every morning {who} walked past the {sort} {object} {where}",
)
SLOT = re.compile(r"{(\w+)}")
TOKENS_PER_CHAR = 0.209
"""Words and punctuation marks per character of these sentences; each is one token or close to it."""
FILL = {
    2: "so",
    3: "too",
    4: "then",
    5: "again",
    6: "slowly",
    7: "quietly",
    8: "together",
    9: "sometimes",
    10: "afterwards",
    11: "immediately",
    12: "occasionally",
    13: "unfortunately",
}


def sentences(rng: Random) -> Iterator[str]:
    """Endless different sentences."""
    seen: set[str] = set()
    while True:
        sentence = SLOT.sub(lambda slot: rng.choice(WORDS[slot[1]]), rng.choice(FORMS))
        if sentence not in seen:
            seen.add(sentence)
            yield sentence[0].upper() + sentence[1:] + ("" if sentence.endswith("?") else ".")


def prose(rng: Random, chars: int) -> str:
    """Sentences of exactly `chars` characters together (at least 20 are made).

    Of every few candidates the one is taken that keeps words per character level, so that texts of one length have
    about the same number of tokens too.
    """
    chars = max(20, chars)
    source = sentences(rng)
    text, tokens = "", 0
    while len(text) < chars:
        choices = [next(source) for _ in range(4)]
        best = min(choices, key=lambda s: abs(tokens + count_words(s) - TOKENS_PER_CHAR * (len(text) + len(s) + 1)))
        text = f"{text} {best}" if text else best
        tokens += count_words(best)
    return trim(text, chars)


def count_words(text: str) -> int:
    """Words and punctuation marks."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def trim(text: str, chars: int) -> str:
    """The beginning of `text`, ended by a full stop after exactly `chars` characters."""
    cut = text[: chars - 4].rsplit(" ", 1)[0].rstrip(",;.?")
    gap = chars - len(cut) - 1
    while gap - 1 > max(FILL):
        cut += f" {FILL[5]}"
        gap -= 6
    return f"{cut} {FILL[gap - 1]}."
