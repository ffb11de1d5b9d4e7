"""A conversation under a token budget: what is sent, what is dropped, and what the server cut."""

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from llmlab import budget, cut
from llmlab.call import Call, Label
from llmlab.client import ChatOptions, ChatStream, Client, Piece
from llmlab.errors import LabError, Overflow, ServerError
from llmlab.messages import Message
from llmlab.summary import summarise
from llmlab.tokens import RATIO_MAX, Estimator, calibrate, estimate_messages

STOPPED = "\n[stopped here]"
REFIT = 0.8
"""What of the window an unexplained refusal leaves for the next try."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the window is kept: `on_overflow` is drop, summary or refuse; `reserve` tokens stay free for the answer.

    `window` is the asked num_ctx, on the OpenAI wire what the server says; None: unknown, so there is no budget.
    """

    window: int | None
    model_context: int | None = None
    budget: bool = True
    on_overflow: str = "drop"
    reserve: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What one question cost. `fit` is None without a budget; `notes` are lines a person should read."""

    text: str
    thinking: str
    tool_calls: tuple[dict[str, object], ...]
    call: Call
    fit: budget.Fit | None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Request:
    """What is about to be sent."""

    messages: tuple[Message, ...]
    fit: budget.Fit | None
    window: budget.Window | None
    options: ChatOptions
    label: Label


Record = Callable[[Call, tuple[str, str]], None]


@dataclass
class Conversation:
    """Messages, a model and a policy; `ask` adds a turn.

    `options` go with every request; `record` takes each call once it has ended, and again when more is known of it;
    `pairs` are (uncalibrated estimate, prompt tokens) of earlier uncut calls of this model, newest first.
    """

    client: Client
    options: ChatOptions
    policy: Policy
    record: Record
    ollama: bool = True
    label: Label = field(default_factory=Label)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    archive: list[Message] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ratio = calibrate(self.pairs)
        self.refused_n_ctx: int | None = None
        self.num_ctx_loaded: int | None = None
        self.summary: Message | None = None
        self._sent: tuple[Message, ...] = ()
        self._notes: list[str] = []
        self._calls = 0

    @property
    def estimator(self) -> Estimator:
        return Estimator(self.ratio)

    @property
    def window(self) -> budget.Window | None:
        """The window the budget works in; None where there is no budget. Raises Overflow where nothing is left."""
        if not self.policy.budget or self.policy.window is None:
            return None
        known = [n for n in (self.refused_n_ctx, self.num_ctx_loaded) if n is not None]
        return budget.window_limit(
            self.policy.window,
            model_context=self.policy.model_context,
            refused_n_ctx=min(known, default=None),
            reserve=self.policy.reserve,
            num_predict=self.options.num_predict,
        )

    def set_budget(self, on: bool) -> None:
        self.policy = replace(self.policy, budget=on)

    def take_back(self) -> Message | None:
        """Remove the newest turn and return its question; None where there is none."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index].role == "user":
                question = self.messages[index]
                del self.messages[index:]
                return question
        return None

    def preview(self, content: str = "", *, pinned: bool = False) -> budget.Fit | None:
        """How the next request would fit with `content` as its question. Raises Overflow."""
        window = self.window
        extra = [Message("user", content, pinned)] if content else []
        return budget.fit([*self.messages, *extra], window.limit, self.estimator) if window else None

    async def ask(self, content: str, *, pinned: bool = False) -> AsyncGenerator[Piece | Answer, None]:
        """Send `content` as the next turn: yields the pieces of the answer, last the Answer.

        A pinned turn is kept, question and answer. Raises Overflow before anything is sent, and what `Client.chat`
        raises; then the conversation is as it was. A stopped answer stays in the conversation, marked as such.
        """
        self._notes = []
        question = Message("user", content, pinned)
        request = await self._request(question)
        stream = self.client.chat(request.messages, request.options, request.label)
        try:
            async with aclosing(self._pieces(question, stream, request)) as pieces:
                async for piece in pieces:
                    yield piece
        except ServerError as error:
            explained = self._explained(error, request)
            if not self._learn(error, request):
                raise explained from None
            try:
                request = await self._request(question)
            except Overflow:
                raise explained from None
            stream = self.client.chat(request.messages, request.options, request.label)
            try:
                async with aclosing(self._pieces(question, stream, request)) as pieces:
                    async for piece in pieces:
                        yield piece
            except ServerError as again:
                raise self._explained(again, request) from None
        yield await self._answer(stream, request)

    async def _pieces(self, question: Message, stream: ChatStream, request: Request) -> AsyncGenerator[Piece, None]:
        try:
            async with stream:
                async for piece in stream:
                    yield piece
        finally:
            self._settle(question, stream, request)

    def _settle(self, question: Message, stream: ChatStream, request: Request) -> None:
        """Record the call, and keep the turn where it was answered or stopped by the user."""
        self._record(stream.call, request.messages, stream.text)
        outcome = stream.call.outcome
        if outcome == "ok" and (stream.text or stream.tool_calls):
            content, extra = stream.text, {"tool_calls": stream.tool_calls} if stream.tool_calls else {}
        elif outcome == "cancelled" and stream.text:
            content, extra = stream.text + STOPPED, {}
        else:
            return
        self.messages += [question, Message("assistant", content, question.pinned, extra)]

    async def _answer(self, stream: ChatStream, request: Request) -> Answer:
        await self._read_loaded_window()
        call = self._window_full(replace(stream.call, num_ctx_loaded=self.num_ctx_loaded), request)
        call = await self._judge(call, request)
        self._record(call, request.messages, stream.text)
        self._calibrate(call)
        self._sent = request.messages
        answer = Answer(stream.text, stream.thinking, tuple(stream.tool_calls), call, request.fit, tuple(self._notes))
        self.answers.append(answer)
        return answer

    def _record(self, call: Call, messages: Sequence[Message], text: str) -> None:
        self.record(call, (json.dumps([m.to_wire() for m in messages], ensure_ascii=False), text))

    # What is sent

    async def _request(self, question: Message) -> Request:
        window = self.window
        history = [*self.messages, question]
        if window is None:
            return self._build(tuple(history), None, None)
        if window.notice and not self.answers and window.notice not in self._notes:
            self._notes.append(window.notice)
        fitted = budget.fit(history, window.limit, self.estimator)
        if fitted.dropped and self.policy.on_overflow == "refuse":
            raise Overflow(
                f"this conversation needs about {self.estimator.messages(history):,} tokens and the window holds "
                f"{window.limit:,} beside the answer",
                "Nothing was sent. Use a larger --num-ctx, /unpin something, or --on-overflow drop",
            )
        if fitted.dropped and self.policy.on_overflow == "summary":
            fitted = await self._summarise(fitted, question, window)
        if fitted.notice:
            self._notes.append(f"{fitted.notice}; this prompt is read anew")
        return self._build(fitted.kept, fitted, window)

    def _build(self, messages: tuple[Message, ...], fitted: budget.Fit | None, window: budget.Window | None) -> Request:
        options = self.options
        if self.ollama:
            options = replace(options, num_ctx=self.policy.window)
        if fitted is not None and window is not None:
            left = budget.num_predict_left(window, fitted.used, options.num_predict)
            options = replace(options, num_predict=left)
            if self.ollama:
                options = replace(options, truncate=False)
        self._calls += 1
        label = replace(
            self.label,
            seq=self._calls,
            prompt_tokens_estimate=estimate_messages(messages),
            messages_pinned=sum(m.pinned for m in messages),
            messages_dropped=len(fitted.dropped) if fitted else 0,
            cache_state="warm" if self._grew(messages) else "unknown",
        )
        return Request(messages, fitted, window, options, label)

    def _grew(self, messages: tuple[Message, ...]) -> bool:
        """Whether `messages` are those of the last answered request and more."""
        return bool(self._sent) and messages[: len(self._sent)] == self._sent

    async def _summarise(self, fitted: budget.Fit, question: Message, window: budget.Window) -> budget.Fit:
        """Replace what `fitted` drops, and the last summary, by one; where that fails, it is only dropped, and said."""
        gone = [m for m in self.messages if m is self.summary] + [d.message for d in fitted.dropped]
        try:
            summary = await summarise(gone, self._ask_aside, self.estimator, window.limit)
        except LabError as error:
            self._notes.append(f"no summary of what was dropped: {error.what}")
            return fitted
        ids = {id(m) for m in gone}
        start = next(i for i, m in enumerate(self.messages) if id(m) in ids)
        self.archive += [m for m in gone if m is not self.summary]
        self.messages = [m for m in self.messages if id(m) not in ids]
        self.messages.insert(start, summary)
        self.summary = summary
        self._notes.append(f"{len(fitted.dropped)} old messages became one pinned summary")
        return budget.fit([*self.messages, question], window.limit, self.estimator)

    # What the server made of it

    def _learn(self, error: ServerError, request: Request) -> bool:
        """After a refusal of a fitted request: learn the count or the window it names. Whether another try may fit."""
        if request.window is None or request.fit is None or not self.ollama:
            return False
        refused = cut.refusal(error.body, error.http_status)
        if refused is None or not cut.too_long(refused, request.fit.used, request.window.num_ctx):
            return False
        self.refused_n_ctx = refused.n_ctx
        estimate = request.label.prompt_tokens_estimate or 1
        wanted = refused.n_prompt_tokens / estimate if refused.n_prompt_tokens else self.ratio / REFIT
        self.ratio = max(self.ratio, min(RATIO_MAX, wanted))
        return True

    def _explained(self, error: ServerError, request: Request) -> ServerError:
        """The server's error; one that refuses the length of a prompt says what to do about it, with the numbers."""
        refused = cut.refusal(error.body, error.http_status)
        estimate = self.estimator.messages(request.messages)
        window = (refused and refused.n_ctx) or request.options.num_ctx or self.policy.window
        if refused is None or window is None or not cut.too_long(refused, estimate, window):
            return error
        count = f"{refused.n_prompt_tokens:,}" if refused.n_prompt_tokens else f"about {estimate:,}"
        budget_on = "" if self.policy.budget else ", or leave out --no-budget"
        return ServerError(
            error.what,
            f"The prompt is {count} tokens and the window {window:,}: use a larger --num-ctx, or send less{budget_on}",
            http_status=error.http_status,
            body=error.body,
            retry_after_s=error.retry_after_s,
        )

    def _window_full(self, call: Call, request: Request) -> Call:
        """An answer that ended at our own cap ended because the window is full, not because the user said so."""
        capped = request.fit is not None and request.options.num_predict != self.options.num_predict
        if capped and call.done_reason == "length" and call.output_tokens == request.options.num_predict:
            return replace(call, done_reason="window_full")
        return call

    async def _judge(self, call: Call, request: Request) -> Call:
        """Set `cut` and `cut_evidence`, asking the server once more only on suspicion."""
        window = request.options.num_ctx or self.policy.window
        if call.prompt_tokens is None or window is None:
            return call
        lost = cut.outgrew(call, self.num_ctx_loaded or window)
        if lost:
            self._notes.append(lost)
        previous = self.answers[-1].call if self.answers else None
        evidence = cut.shrunk(previous, call, self._grew(request.messages))
        if evidence:
            return self._cut(call, "proved", evidence, request)
        suspicion = cut.suspicion(
            call, self.estimator.messages(request.messages), bool(self.pairs), self.num_ctx_loaded or window
        )
        if suspicion is None:
            return replace(call, cut="no")
        if not self.ollama or request.options.truncate is False:
            return self._cut(call, "suspected", suspicion, request)
        return await self._probe(call, suspicion, request, window)

    async def _probe(self, call: Call, suspicion: str, request: Request, window: int) -> Call:
        """Send the same request with `truncate: false`: a refusal proves the cut."""
        options = replace(request.options, truncate=False, num_predict=1)
        try:
            probe = await self._aside(request.messages, options, replace(request.label, purpose="probe"))
        except ServerError as error:
            refused = cut.refusal(error.body, error.http_status)
            if refused is None:
                return self._cut(call, "suspected", suspicion, request)
            return self._cut(call, "proved", cut.refused_evidence(refused), request)
        except LabError:
            return self._cut(call, "suspected", suspicion, request)
        if probe.call.prompt_tokens == call.prompt_tokens and not cut.is_half(call, window):
            return replace(call, cut="no", cut_evidence="accepted with truncate: false")
        return self._cut(call, "suspected", suspicion, request)

    async def _aside(self, messages: Sequence[Message], options: ChatOptions, label: Label) -> ChatStream:
        """One recorded call beside the conversation, read to its end."""
        stream = self.client.chat(messages, options, label)
        try:
            async with stream:
                await stream.read()
        finally:
            self._record(stream.call, messages, stream.text)
        return stream

    async def _ask_aside(self, question: Message, num_predict: int) -> str:
        options = replace(self.options, num_predict=num_predict, think=None)
        if self.ollama:
            options = replace(options, num_ctx=self.policy.window, truncate=False)
        estimate = estimate_messages([question])
        label = replace(self.label, purpose="summary", messages_dropped=0, prompt_tokens_estimate=estimate)
        return (await self._aside([question], options, label)).text

    def _cut(self, call: Call, verdict: str, evidence: str, request: Request) -> Call:
        self._notes.append(cut.line(call, self.estimator.messages(request.messages), verdict))
        return replace(call, cut=verdict, cut_evidence=evidence)

    def _calibrate(self, call: Call) -> None:
        """Learn from an uncut call; a ratio that moves little is left alone, so that the cut stays where it is."""
        if call.outcome != "ok" or call.cut != "no" or not call.prompt_tokens or not call.prompt_tokens_estimate:
            return
        self.pairs.insert(0, (call.prompt_tokens_estimate, call.prompt_tokens))
        ratio = calibrate(self.pairs)
        if len(self.pairs) == 1 or abs(ratio / self.ratio - 1) > 0.1:
            self.ratio = ratio

    async def _read_loaded_window(self) -> None:
        """Ask once which window the server really loaded; a smaller one than asked is said and kept to."""
        if not self.ollama or self.num_ctx_loaded is not None or self.policy.window is None:
            return
        try:
            loaded = {m.name: m.num_ctx for m in await self.client.loaded()}
        except LabError:
            return
        self.num_ctx_loaded = loaded.get(self.options.model)
        if self.num_ctx_loaded is not None and self.num_ctx_loaded < self.policy.window:
            self._notes.append(
                f"the server loaded a window of {self.num_ctx_loaded:,} tokens, not the {self.policy.window:,} asked"
            )
