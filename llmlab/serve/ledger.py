"""The ledger: what a server knows of its models, and the row that each call becomes."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from llmlab.call import Call
from llmlab.errors import LabError, StoreError
from llmlab.model import Model
from llmlab.serve.metrics import Metrics
from llmlab.store import Store
from llmlab.target import Target
from llmlab.tokens import Estimator, calibrate

FRESH_S = 30.0
MOST_PAIRS = 200
MOST_MODELS = 200
MOST_WINDOWS = 16
STEADY = 0.1
MOST_UNSAVED = 1000
SAVED_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The window of a loaded model in tokens (None: the server does not tell), and when that was read."""

    tokens: int | None
    read_s: float


@dataclass
class Known:
    """What is known of one model name: the model, what calibrates its token estimate, and the window it has.

    `windows` are those that the server really loaded, by the num_ctx asked for (None: not said).
    """

    model: Model
    pairs: list[tuple[int, int]]
    read_s: float
    windows: dict[int | None, Loaded] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ratio = calibrate(self.pairs)

    @property
    def estimator(self) -> Estimator:
        return Estimator(self.ratio)

    def remember_window(self, num_ctx: int | None, loaded: Loaded) -> None:
        """Note the window that a request for `num_ctx` really got."""
        if len(self.windows) >= MOST_WINDOWS:
            self.windows.clear()
        self.windows[num_ctx] = loaded

    def learn(self, call: Call) -> None:
        """Calibrate by a call that the server did not cut."""
        if call.outcome == "ok" and call.cut == "no" and call.prompt_tokens and call.prompt_tokens_estimate:
            self.learn_pairs([(call.prompt_tokens_estimate, call.prompt_tokens), *self.pairs])

    def learn_pairs(self, pairs: list[tuple[int, int]]) -> None:
        """Take over what a conversation has learned; newest first.

        A ratio that moves little is left alone, so that the budget cuts conversations where it cut them before.
        """
        first = not self.pairs
        self.pairs = pairs[:MOST_PAIRS]
        ratio = calibrate(self.pairs)
        if first or abs(ratio / self.ratio - 1) > STEADY:
            self.ratio = ratio


class Ledger:
    """Records calls, off the path of the answers, and remembers what must be known of a model to do so."""

    def __init__(
        self,
        target: Target,
        store: Store,
        run_id: str,
        metrics: Metrics,
        *,
        keep_text: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.run_id = run_id
        self.metrics = metrics
        self._store = store
        self.keep_text = keep_text
        self._clock = clock
        self._known: dict[str, Known] = {}
        self._seq = 0
        self._asking = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()
        self._remember(target.model)

    # Models

    async def known(self, name: str) -> Known:
        """What is known of the model `name`; asks the server the first time. Raises what the client raises.

        What is not fresh is read again in the background: no call waits for it.
        """
        known = self._known.get(name)
        if known is None:
            async with self._asking:  # many calls may begin at once: one of them asks
                return self._known.get(name) or await self._read(name)
        if self._clock() - known.read_s > FRESH_S:
            known.read_s = self._clock()
            self.later(self._refresh(name))
        return known

    async def _read(self, name: str) -> Known:
        return self._remember(await self.target.client.model(name), name)

    async def _refresh(self, name: str) -> None:
        with suppress(LabError):
            await self._read(name)

    def remembered(self, name: str) -> Known | None:
        """What is known of the model `name`, without asking."""
        return self._known.get(name)

    async def window(self, known: Known, num_ctx: int | None = None) -> int | None:
        """The window the server really has for a model asked with `num_ctx`, in tokens; None where it does not tell."""
        if not self.window_is_fresh(known, num_ctx):
            async with self._asking:
                if not self.window_is_fresh(known, num_ctx):
                    known.remember_window(num_ctx, Loaded(await self._read_window(known.model.name), self._clock()))
        return known.windows[num_ctx].tokens

    def window_is_fresh(self, known: Known, num_ctx: int | None) -> bool:
        """Whether `window` would not ask the server."""
        loaded = known.windows.get(num_ctx)
        return loaded is not None and self._clock() - loaded.read_s <= FRESH_S

    async def _read_window(self, name: str) -> int | None:
        client = self.target.client
        try:
            if self.target.api == "openai":
                return await client.window(name)
            names = (name, f"{name}:latest")
            return next((m.num_ctx for m in await client.loaded() if m.name in names), None)
        except LabError:
            return None

    def _remember(self, model: Model, name: str | None = None) -> Known:
        name = name or model.name
        old = self._known.get(name)
        if old is not None and old.model == model:
            old.read_s = self._clock()
            return old
        self._store.save_model(model)
        if len(self._known) >= MOST_MODELS:
            self._known.clear()
        known = self._known[name] = Known(model, self._store.calibration_pairs(model.id), self._clock())
        return known

    # Rows

    def record(self, call: Call, texts: tuple[str, str] | None) -> None:
        """Queue the row of a call of a known model; the same call again replaces its row."""
        self._store.add(call, texts=texts if self.keep_text else None)

    def next_seq(self) -> int:
        """The number of the next relayed call of this run."""
        self._seq += 1
        return self._seq

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` in the background; `settle` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def settle(self) -> None:
        """Wait for what is done in the background."""
        if self._work:
            await asyncio.wait(self._work, timeout=SAVED_WITHIN_S)

    async def room(self) -> None:
        """Hold a call back while very many rows wait to be written: calls that are shorter than a write fill memory."""
        if self._store.unsaved > MOST_UNSAVED:
            await self.saved()

    async def saved(self) -> str | None:
        """Wait a moment until all rows are durable; one line where they are not."""
        try:
            async with asyncio.timeout(SAVED_WITHIN_S):
                await self._store.saved()
        except TimeoutError:
            return "the database is slow: the numbers of this answer are not saved yet"
        except StoreError as error:
            return f"not saved: {error}"
        return None
