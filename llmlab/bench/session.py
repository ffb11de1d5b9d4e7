"""Session: one bench run under way; every call it makes is a row at once."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llmlab import cut
from llmlab.bench.plan import THINKING_PREDICT, Plan, PlannedCell
from llmlab.bench.progress import Progress
from llmlab.bench.prompts import Prompt, PromptMaker
from llmlab.call import Call, Label, add_flag
from llmlab.client.options import ChatOptions
from llmlab.errors import LabError, ServerError, Unreachable
from llmlab.messages import Message
from llmlab.model import LoadedModel, Model
from llmlab.run import Run
from llmlab.tokens import calibrate, estimate_messages

if TYPE_CHECKING:
    from llmlab.client import Client
    from llmlab.store import Store

RELOAD_NS = 300_000_000
"""A measured call with more load than this found the model unloaded."""
SHORT = 16
"""Output tokens below which a decode speed is not compared."""
LEAST_LIMIT_S = 120.0
"""A limit for a whole answer that no slow server reaches by being slow."""
KEEP_ALIVE_S = 600
"""Every call renews it, so that it outlasts any run, and it is over soon where a run was stopped."""
SERVER_KEEP_ALIVE = "5m"
"""Ollama's own default, which the last call gives back."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded call with what it said; `error` where it failed."""

    call: Call
    text: str
    messages: tuple[Message, ...]
    error: LabError | None

    @property
    def ok(self) -> bool:
        return self.call.outcome == "ok"


@dataclass
class Session:
    """Everything the experiments share. `calls` holds the run's calls so far, in order, resumed ones first."""

    client: "Client"
    store: "Store"
    run: Run
    plan: Plan
    model: Model
    api: str
    progress: Progress
    keep_text: bool = False
    calls: list[Call] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    num_ctx_loaded: int | None = None
    think: bool | None = None
    thinking: bool = False
    failures: Counter[PlannedCell] = field(default_factory=Counter)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.maker = PromptMaker(self.plan.seed)
        self.keep_alive: int | str | None = KEEP_ALIVE_S + round(self.plan.cooldown_s)
        self.said: set[str] = set()
        self.call_limit = self.client.total_s is None
        self.sequence = max((c.seq or 0 for c in self.calls), default=0)

    @property
    def ollama(self) -> bool:
        return self.api == "ollama"

    @property
    def window(self) -> int:
        """The window in tokens: the one asked for, or the smaller one that was loaded."""
        return min(self.plan.num_ctx, self.num_ctx_loaded or self.plan.num_ctx)

    @property
    def ratio(self) -> float:
        """The model's own tokens per estimated token, from this run's uncut calls."""
        pairs = ((c.prompt_tokens_estimate or 0, c.prompt_tokens or 0) for c in self.calls if c.cut in (None, "no"))
        return calibrate(pairs)

    def mark(self, text: str) -> None:
        """Say something once that makes the run's figures less comparable, and keep it with the run."""
        if text not in self.marks:
            self.marks.append(text)
            self.progress.note(text)

    def note_once(self, text: str) -> None:
        """Say something once; a repeated failure does not fill the screen."""
        if text not in self.said:
            self.said.add(text)
            self.progress.note(text)

    def label(self, **known: Any) -> Label:
        """A label of this run with the next sequence number."""
        self.sequence += 1
        return Label(run_id=self.run.id, seq=self.sequence, model_id=self.model.id, **known)

    def options(self, num_predict: int, truncate: bool | None) -> ChatOptions:
        """Temperature 0, the run's seed and window; a model that cannot help thinking gets room for it."""
        return ChatOptions(
            model=self.model.name,
            num_ctx=self.plan.num_ctx if self.ollama else None,
            num_predict=max(num_predict, THINKING_PREDICT) if self.thinking else num_predict,
            options={"temperature": 0, "seed": self.plan.seed},
            think=self.think,
            keep_alive=self.keep_alive if self.ollama else None,
            truncate=truncate if self.ollama else None,
        )

    async def ask(
        self,
        messages: Sequence[Message],
        label: Label,
        *,
        num_predict: int,
        truncate: bool | None = False,
        start: asyncio.Event | None = None,
    ) -> Answer:
        """Make one call and record it, whatever happens; with `start` it is made ready now, and sent then.

        A failure is an Answer with its error. Raises Unreachable, after recording, where the server is gone, and what
        cancels the run.
        """
        label = replace(label, prompt_tokens_estimate=estimate_messages(messages))
        options = self.options(num_predict, truncate)
        stream = self.client.chat(messages, options, label)
        error: LabError | None = None
        try:
            async with stream:
                if start is not None:
                    stream.prepare()
                    await start.wait()
                await stream.read()
        except LabError as fault:
            error = fault
        finally:
            call = self.judge(stream.call, stream.text, options, messages)
            self.keep(call, messages, stream.text)
        if isinstance(error, Unreachable):
            raise error
        return Answer(call, stream.text, tuple(messages), error)

    def keep(self, call: Call, messages: Sequence[Message], text: str) -> None:
        """Record a call; one recorded before is replaced."""
        if self.calls and any(c.id == call.id for c in self.calls[-64:]):
            self.calls = [call if c.id == call.id else c for c in self.calls]
        else:
            self.calls.append(call)
        texts = (json.dumps([m.to_wire() for m in messages], ensure_ascii=False), text) if self.keep_text else None
        self.store.add(call, texts=texts)

    def judge(self, call: Call, text: str, options: ChatOptions, messages: Sequence[Message]) -> Call:
        """The call with what its figures say of it: reloaded, short or no answer, thinking, cut."""
        flags = call.flags
        if (call.load_ns or 0) > RELOAD_NS and call.purpose in ("measured", "anchor"):
            flags = add_flag(flags, "reloaded")
        if self.thinking:
            flags = add_flag(flags, "thinking")
        if self.maker.fold:
            flags = add_flag(flags, "system_ignored")
        if call.outcome == "ok" and not text.strip():
            flags = add_flag(flags, "no_answer")
        least = min(SHORT, options.num_predict or SHORT)
        if call.outcome == "ok" and call.experiment != "overflow" and (call.output_tokens or least) < least:
            flags = add_flag(flags, "short_answer")
        call = replace(call, flags=flags, num_ctx_loaded=self.num_ctx_loaded)
        lengths = self.maker.lengths
        expected = round(lengths.tokens(sum(len(m.content) for m in messages)))
        # A burst may find its window split: there even a short prompt can be cut.
        window = None if call.experiment == "users" else self.window
        evidence = cut.suspicion(call, expected, lengths.known, window)
        return replace(call, cut="suspected", cut_evidence=evidence) if evidence else call

    def learn(self, prompt: Prompt, call: Call) -> None:
        """Let an uncut prompt improve the lengths of those to come."""
        if call.outcome == "ok" and call.cut is None:
            self.maker.lengths.learn(prompt.chars, call.prompt_tokens)

    async def loaded(self) -> list[LoadedModel] | None:
        """The models in memory; None where the server does not tell."""
        if not self.ollama:
            return None
        try:
            return await self.client.loaded()
        except ServerError:
            return None

    def is_ours(self, loaded: LoadedModel) -> bool:
        """Whether this is the model of the run, perhaps under another name."""
        return loaded.name == self.model.name or (loaded.digest is not None and loaded.digest == self.model.digest)

    async def look(self) -> None:
        """Read the window that is really loaded; say where it is not the one asked, and where it changes."""
        loaded = next(filter(self.is_ours, await self.loaded() or []), None)
        window = loaded.num_ctx if loaded else None
        if window and self.num_ctx_loaded and window != self.num_ctx_loaded:
            self.mark(
                f"the window changed from {self.num_ctx_loaded:,} to {window:,} tokens in mid-run (another client?)"
            )
        elif window and window != self.plan.num_ctx:
            self.mark(f"the server loaded a window of {window:,} tokens, not the {self.plan.num_ctx:,} asked")
        if loaded and window:
            self.num_ctx_loaded = window
            facts: Any = {"size_bytes": loaded.size_bytes, "size_vram_bytes": loaded.size_vram_bytes}
            self.run = replace(self.run, num_ctx_loaded=window, **facts)
            self.store.update_run(self.run.id, num_ctx_loaded=window, **facts)

    def limit_calls(self, longest_s: float) -> None:
        """No call may take over twenty times what the dearest is expected to: a model can answer without end."""
        if self.call_limit:
            self.client.total_s = max(LEAST_LIMIT_S, 20 * longest_s)

    async def cool_down(self) -> None:
        if self.plan.cooldown_s:
            await asyncio.sleep(self.plan.cooldown_s)

    def measured(self, experiment: str, variant: str | None = None, size: int | None = None) -> list[Call]:
        """The finished measured calls of a cell so far, failed ones included."""
        return [
            c
            for c in self.calls
            if c.purpose == "measured"
            and (c.experiment, c.variant, c.size) == (experiment, variant, size)
            and c.outcome != "cancelled"
        ]
