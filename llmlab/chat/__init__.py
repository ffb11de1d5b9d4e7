"""`llmlab chat`: one question, lines from a pipe, or a conversation in the terminal."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from llmlab.call import Call, Label, has_flag
from llmlab.chat.screen import Screen
from llmlab.client import ChatOptions, Piece
from llmlab.conversation import Answer, Conversation, Policy
from llmlab.errors import Exit, UsageError
from llmlab.figures import format_seconds
from llmlab.messages import Message
from llmlab.printable import json_text
from llmlab.recorded import recorded
from llmlab.settings import database_path
from llmlab.store import Store
from llmlab.target import Choice, Target, open_target

PIN = "/pin"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """What the command line asked for. `num_ctx` None: 4,096, or what an OpenAI-compatible server says."""

    choice: Choice
    db: Path | None = None
    tag: str | None = None
    system: str | None = None
    num_ctx: int | None = None
    num_predict: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    think: bool | None = None
    keep_alive: int | str | None = None
    keep_text: bool = False
    budget: bool = True
    on_overflow: str = "drop"
    reserve: int | None = None
    as_json: bool = False
    lines: bool = False
    question: str | None = None


async def chat(settings: ChatSettings) -> Exit:
    """Run the command. Raises LabError."""
    screen = Screen()
    turns = _piped_turns(settings)
    with Store.open(database_path(settings.db)) as store:
        async with AsyncExitStack() as stack:
            target = await stack.enter_async_context(open_target(settings.choice, screen.note))
            policy = _policy(settings, target)
            run = recorded(store, target, "chat", tag=settings.tag, num_ctx=policy.window, options=settings.options)
            talk = Talk(settings, target, store, await stack.enter_async_context(run), policy, screen)
            if turns is None:
                from llmlab.chat.prompt import converse

                return await converse(talk)
            for turn in turns:
                await talk.turn(turn)
    return Exit.OK


def _piped_turns(settings: ChatSettings) -> list[str] | None:
    """The turns given as an argument or on a pipe; None: ask at the terminal. UsageError where there is nothing."""
    question = settings.question
    if sys.stdin is None or sys.stdin.closed:
        piped = ""
    elif sys.stdin.isatty():
        return None if question is None else [question]
    else:
        piped = sys.stdin.buffer.read().decode("utf-8-sig", "replace")
    if settings.lines:
        turns = [line.strip() for line in piped.split("\n")]
    else:
        turns = ["\n\n".join(part for part in (piped.strip(), question) if part)]
    turns = [turn for turn in turns if turn]
    if not turns:
        raise UsageError("nothing to say: standard input is empty", 'Try: llmlab chat "What is a KV cache?"')
    return turns


def _policy(settings: ChatSettings, target: Target) -> Policy:
    window = target.num_ctx(settings.num_ctx)
    return Policy(window, target.model.context_length, settings.budget, settings.on_overflow, settings.reserve)


class Talk:
    """A conversation, the screen it is shown on and the store it is recorded in."""

    def __init__(
        self, settings: ChatSettings, target: Target, store: Store, run_id: str, policy: Policy, screen: Screen
    ) -> None:
        self.settings = settings
        self.target = target
        self.store = store
        self.screen = screen
        self.failed: str | None = None
        self.thinking = ""
        self.conversation = Conversation(
            target.client,
            ChatOptions(
                model=target.model.name,
                num_predict=settings.num_predict,
                options=settings.options,
                think=settings.think,
                keep_alive=settings.keep_alive,
            ),
            policy,
            self._record,
            ollama=target.api == "ollama",
            label=Label(run_id=run_id, model_id=target.model.id),
            pairs=store.calibration_pairs(target.model.id),
        )
        if settings.system:
            self.conversation.messages.append(Message("system", settings.system))
        if policy.window is None and policy.budget:
            self.screen.note("this server does not say its window: no budget (give it with --num-ctx)")

    def _record(self, call: Call, texts: tuple[str, str]) -> None:
        self.store.add(call, texts=texts if self.settings.keep_text else None)

    async def turn(self, text: str) -> Answer:
        """Ask, show the answer as it comes, then the numbers, once the row is safe. Raises LabError; Ctrl-C stops."""
        pinned, content = split_pin(text)
        self.failed = content if not pinned else f"{PIN} {content}"
        answer = await stoppable(self._ask(content, pinned))
        self.failed = None
        await self.store.saved()
        self._show(answer)
        return answer

    async def _ask(self, content: str, pinned: bool) -> Answer:
        answer: Answer | None = None
        try:
            async with self.screen.waiting("waiting"), aclosing(self.conversation.ask(content, pinned=pinned)) as parts:
                async for part in parts:
                    if isinstance(part, Piece):
                        await self._piece(part)
                    else:
                        answer = part
        finally:
            if not self.settings.as_json:
                self.screen.end()
        assert answer is not None
        return answer

    async def _piece(self, piece: Piece) -> None:
        if not self.settings.as_json:
            await self.screen.piece(piece)

    def _show(self, answer: Answer) -> None:
        self.thinking = answer.thinking
        if self.settings.as_json:
            self.screen.out.write(json_text(as_json(answer)) + "\n")
            self.screen.out.flush()
        else:
            self.screen.numbers(answer)
        for line in endings(answer, self.settings.num_predict):
            self.screen.note(line)


def split_pin(text: str) -> tuple[bool, str]:
    """Whether `text` asks to be pinned, and its content. UsageError where a pin has no text."""
    word, _, content = text.partition(" ")
    if word != PIN:
        return False, text
    if not content.strip():
        raise UsageError(f"{PIN} needs a text", f"For example: {PIN} The code word is BLUEBIRD")
    return True, content.strip()


def endings(answer: Answer, num_predict: int | None) -> Iterator[str]:
    """What a person should know of how an answer ended."""
    call = answer.call
    if answer.tool_calls:
        yield f"the model asked for {_counted(len(answer.tool_calls), 'tool')}; chat runs none"
    elif not answer.text:
        spent = f" in {_counted(call.output_tokens, 'token')}" if call.output_tokens else ""
        yield f"no answer: the model only thought{spent}" if answer.thinking else f"no answer{spent}"
    if call.done_reason == "length":
        yield f"stopped at -n {num_predict}" if num_predict else "stopped: the server's own limit for an answer"
    elif call.done_reason == "window_full":
        yield "stopped: the window is full; a larger --num-ctx, or fewer pins, leaves more room"
    elif call.done_reason == "repeat":
        yield "stopped: the model had come to repeat itself"
    elif call.done_reason not in (None, "stop", "tool_calls"):
        yield f"stopped: {call.done_reason}"
    if has_flag(call, "buffered"):
        yield "the stream looks buffered by a proxy: the time to first token is not the model's"
    if has_flag(call, "slow_connect"):
        opening = format_seconds((call.connect_ns or 0) / 1e9)
        yield f"connecting to this very machine took {opening}; 127.0.0.1 may be quicker than localhost"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def as_json(answer: Answer) -> dict[str, Any]:
    """One turn for a program to read."""
    return {
        "answer": answer.text,
        "thinking": answer.thinking,
        "tool_calls": list(answer.tool_calls),
        "dropped": len(answer.fit.dropped) if answer.fit else 0,
        "notes": list(answer.notes),
        "call": answer.call.row(),
    }


async def stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; Ctrl-C cancels it and raises KeyboardInterrupt here once it has cleaned up."""
    task = asyncio.ensure_future(work)
    with interrupts(task.cancel):
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled():
                raise KeyboardInterrupt from None
            task.cancel()
            raise


@contextmanager
def interrupts(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` on the loop when Ctrl-C is pressed, in place of whatever did it before."""
    loop = asyncio.get_running_loop()
    before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(stop))
    try:
        yield
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGINT, before)
