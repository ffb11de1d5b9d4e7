"""A pour: gives a reader that nobody watches what arrives, without waking a task for each token."""

import asyncio
import itertools
from typing import TYPE_CHECKING

from llmlab.client.arrivals import TakeIn

if TYPE_CHECKING:
    from llmlab.client.exchange import Exchange

BATCH = 16
LOOK_S = 0.25
_turns = itertools.cycle(range(BATCH))


class Pour:
    """Gives `take_in` the first bytes of an exchange at once, and what follows in batches of chunks.

    The bytes have their stamps when they come here: that they are read a little later moves no figure, and costs less.
    `over` ends when `take_in` has enough, or raises what broke the exchange off.
    """

    def __init__(self, exchange: "Exchange", take_in: TakeIn) -> None:
        self._exchange = exchange
        self._take_in = take_in
        self._loop = asyncio.get_running_loop()
        self._most = 1
        # Streams that began together are not read together: the loop would be blocked for as long as that takes.
        self._most_then = 2 + next(_turns)
        self._seen_ns = 0
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def wake(self) -> None:
        """Something came, or nothing more can."""
        exchange = self._exchange
        if len(exchange.chunks) >= self._most or exchange.complete or exchange.paused or exchange.error is not None:
            self._give()

    def _look(self) -> None:
        """What has waited since the last look, and nothing came after it, may be the end of the answer."""
        exchange = self._exchange
        if exchange.chunks and exchange.stamp_ns == self._seen_ns:
            self._give()
        self._seen_ns = exchange.stamp_ns
        if not self.over.done():
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _give(self) -> None:
        if self.over.done():
            return
        self._most, self._most_then = self._most_then, BATCH
        try:
            enough = self._has_enough()
        except Exception as error:  # the reader's own, and so it is raised where the reader waits
            self.over.set_exception(error)
        else:
            if enough:
                self.over.set_result(None)
            elif self._exchange.error is not None:
                self.over.set_exception(self._exchange.error)
        if self.over.done():
            self._timer.cancel()

    def _has_enough(self) -> bool:
        exchange, take_in = self._exchange, self._take_in
        return (bool(exchange.chunks) and take_in(exchange.take())) or (exchange.complete and take_in([]))
