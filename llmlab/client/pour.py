"""A pour: gives a reader that nobody watches what arrives, without waking a task for each token."""

import asyncio
import itertools
from typing import TYPE_CHECKING

from llmlab.client.arrivals import TakeIn

if TYPE_CHECKING:
    from llmlab.client.exchange import Exchange

BATCH_S = 0.25
GOLDEN = 0.618
_turns = itertools.count()


class Pour:
    """Gives `take_in` the first bytes of an exchange at once, and what follows in batches.

    The bytes have their stamps when they come here: that they are read a little later moves no figure, and costs less.
    `over` ends when `take_in` has enough, or raises what broke the exchange off.
    """

    def __init__(self, exchange: "Exchange", take_in: TakeIn) -> None:
        self._exchange = exchange
        self._take_in = take_in
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        # Streams that began together are not read together: the loop would be blocked for as long as that takes.
        self._delay_s = BATCH_S * (next(_turns) * GOLDEN % 1)
        self.over: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """Something came, or nothing more can."""
        exchange = self._exchange
        if self._timer is None or exchange.complete or exchange.paused or exchange.error is not None:
            self._give()

    def _give(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.over.done():
            return
        try:
            enough = self._has_enough()
        except Exception as error:  # the reader's own, and so it is raised where the reader waits
            self.over.set_exception(error)
            return
        if enough:
            self.over.set_result(None)
        elif self._exchange.error is not None:
            self.over.set_exception(self._exchange.error)
        else:
            self._timer = self._loop.call_later(self._delay_s, self._give)
            self._delay_s = BATCH_S

    def _has_enough(self) -> bool:
        exchange, take_in = self._exchange, self._take_in
        return (bool(exchange.chunks) and take_in(exchange.take())) or (exchange.complete and take_in([]))
