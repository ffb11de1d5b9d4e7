"""A loop: an answer that says the same thing over and over, as small models do at temperature 0, and never ends."""

COPIES = 4
LOOP_CHARS = 600
LONGEST_CHARS = 600
"""A loop is at least four copies of at most 600 characters, together at least 600."""
KEY_CHARS = 24
CHECK_CHARS = 64


class LoopWatch:
    """Watches the text of one answer. Ollama gives up after one token came 30 times; a phrase can loop as well."""

    def __init__(self) -> None:
        self.tail = ""
        self.unchecked = 0

    def sees_loop(self, piece: str) -> bool:
        """Whether the answer, grown by `piece`, has come to repeat itself."""
        self.tail = (self.tail + piece)[-(COPIES + 1) * LONGEST_CHARS :]
        self.unchecked += len(piece)
        if self.unchecked < CHECK_CHARS:
            return False
        self.unchecked = 0
        return loops(self.tail)


def loops(text: str) -> bool:
    """Whether `text` ends in a loop."""
    if len(text) < LOOP_CHARS:
        return False
    key = text[-KEY_CHARS:]
    before = text.rfind(key, 0, len(text) - 1)
    while before >= 0 and (period := len(text) - KEY_CHARS - before) <= LONGEST_CHARS:
        span = max(COPIES * period, LOOP_CHARS)
        if len(text) >= span and text[-span:-period] == text[-span + period :]:
            return True
        before = text.rfind(key, 0, before + KEY_CHARS - 1)
    return False
