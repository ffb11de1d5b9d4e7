"""A refusal: what the engine answers instead of an answer."""


class Refusal(Exception):
    """The request ends with `status`, and with `text` as its error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


BUSY = Refusal(503, "server busy, please try again.  maximum pending requests exceeded")
