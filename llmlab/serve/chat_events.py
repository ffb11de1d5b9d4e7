"""POST /chat: an answer as server-sent events, and POST /window: what it would send."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from copy import copy
from typing import Any

from llmlab.budget import DEFAULT_NUM_CTX
from llmlab.call import Call, Label
from llmlab.client import ChatOptions, Piece
from llmlab.conversation import Answer, Conversation, Policy
from llmlab.errors import LabError
from llmlab.messages import Message
from llmlab.serve.asgi import Receive, Scope, Send
from llmlab.serve.attendance import Attendance, End
from llmlab.serve.chat_request import ChatRequest, read_chat_request
from llmlab.serve.events import Failure, Filling, Receipt, Stats
from llmlab.serve.gate import Full, Gate
from llmlab.serve.ledger import Known, Ledger
from llmlab.serve.problem import Problem, busy, problem_of, send_json, send_problem
from llmlab.serve.sessions import Session, Sessions
from llmlab.serve.settings import ServeSettings
from llmlab.serve.sse import EventStream
from llmlab.serve.window import dropped_places, window_bar

ROUTE = "/chat"
STOPPING = "llmlab is stopping"
FULL = "too many answers are being given at once"


class ChatEvents:
    """Answers /chat: finds the conversation, asks, and sends what comes as events."""

    def __init__(
        self,
        ledger: Ledger,
        gate: Gate,
        attendance: Attendance,
        sessions: Sessions,
        settings: ServeSettings,
    ) -> None:
        self.ledger = ledger
        self.gate = gate
        self.attendance = attendance
        self.sessions = sessions
        self.settings = settings

    async def answer(self, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request whose body is `raw`, as long as the client is there."""
        request = read_chat_request(raw)
        if isinstance(request, Problem):
            await send_problem(scope, send, request)
            return
        stream = EventStream(send, self.settings.idle_s)
        end = await self.attendance.run(receive, self._answer(request, scope, send, stream))
        if end is End.DISMISSED:
            await _fail(scope, send, stream, busy(STOPPING, "Ask again when it is back"), None)

    async def fill(self, raw: bytes, scope: Scope, send: Send) -> None:
        """Say how the request whose body is `raw` would fill the window, without asking the model."""
        request = read_chat_request(raw)
        try:
            if not isinstance(request, Problem):
                await send_json(send, 200, (await self._fill(request)).model_dump(), [])
                return
            problem = request
        except LabError as error:
            problem = problem_of(error)
        await send_problem(scope, send, problem)

    async def _fill(self, request: ChatRequest) -> Filling:
        session = Session()
        if request.session is not None and (remembered := self.sessions.peek(request.session)) is not None:
            session.conversation = copy(remembered)
        known = await self.ledger.known(request.model or self.ledger.target.model.name)
        conversation = await self.conversation(request, session, known)
        fit = conversation.preview(request.question.content, pinned=request.question.pinned)
        return Filling(
            window=window_bar(conversation, fit, request.question), dropped=dropped_places(conversation, fit)
        )

    async def _answer(self, request: ChatRequest, scope: Scope, send: Send, stream: EventStream) -> None:
        talk = Talk(self, request, stream)
        async with stream:
            try:
                async with self._session(request) as session, self.gate.place():
                    await talk.run(session)
                    return
            except Full as full:
                self.ledger.metrics.refused(ROUTE)
                problem = busy(FULL, "Ask again later", full.retry_after_s)
            except LabError as error:
                problem = problem_of(error)
            await _fail(scope, send, stream, problem, talk.call)

    @asynccontextmanager
    async def _session(self, request: ChatRequest) -> AsyncIterator[Session]:
        """The remembered conversation, for one request at a time; a fresh one where none is named."""
        if request.session is None:
            yield Session()
            return
        session = self.sessions.get(request.session)
        async with session.lock:
            try:
                yield session
            finally:
                self.sessions.keep(request.session, session)

    async def conversation(self, request: ChatRequest, session: Session, known: Known) -> Conversation:
        """The session's conversation, brought to what the request says."""
        defaults, target = self.settings, self.ledger.target
        conversation = session.conversation
        if conversation is None or conversation.options.model != known.model.name:
            messages = conversation.messages if conversation else []
            conversation = session.conversation = Conversation(
                target.client,
                ChatOptions(model=known.model.name),
                Policy(None),
                lambda call, texts: None,
                ollama=target.api == "ollama",
                pairs=list(known.pairs),
                messages=messages,
            )
            conversation.ratio = known.ratio
        conversation.label = Label(run_id=self.ledger.run_id, model_id=known.model.id)
        conversation.options = ChatOptions(
            model=known.model.name,
            num_predict=request.num_predict or defaults.num_predict,
            options={**defaults.options, **request.options},
            think=defaults.think if request.think is None else request.think,
            keep_alive=defaults.keep_alive,
        )
        _set_policy(
            conversation,
            Policy(
                request.num_ctx or defaults.num_ctx or await self._usual_window(known),
                known.model.context_length,
                defaults.budget is not False if request.budget is None else request.budget,
                defaults.on_overflow,
                defaults.reserve,
            ),
        )
        if request.history is not None:
            conversation.messages = request.history
        _set_system(conversation, defaults.system if request.system is None else request.system)
        return conversation

    async def _usual_window(self, known: Known) -> int | None:
        return DEFAULT_NUM_CTX if self.ledger.target.api == "ollama" else await self.ledger.window(known)


class Talk:
    """One question on its way through a conversation."""

    def __init__(self, chat: ChatEvents, request: ChatRequest, stream: EventStream) -> None:
        self.chat = chat
        self.request = request
        self.stream = stream
        self.call: Call | None = None
        self._counted: set[str] = set()

    async def run(self, session: Session) -> None:
        """Ask, send the events, end the stream. Raises LabError where the answer fails."""
        ledger, request = self.chat.ledger, self.request
        known = await ledger.known(request.model or ledger.target.model.name)
        conversation = await self.chat.conversation(request, session, known)
        conversation.record = self._record
        try:
            await self._ask(conversation)
        finally:
            known.learn_pairs(conversation.pairs)
            _forget_what_is_done(conversation)
        await self.stream.end()

    async def _ask(self, conversation: Conversation) -> None:
        question = self.request.question
        spoken = False
        async with aclosing(conversation.ask(question.content, pinned=question.pinned)) as parts:
            async for part in parts:
                if isinstance(part, Piece):
                    await self.stream.event({"delta" if part.kind == "content" else "thinking": part.text})
                    if not spoken:
                        spoken = True
                        await self.stream.event(self._receipt(conversation, question), "receipt")
                else:
                    await self.stream.event(await self._stats(conversation, part), "stats")

    def _receipt(self, conversation: Conversation, question: Message) -> dict[str, Any]:
        """What was sent. It follows the first piece, so that counting costs no time to first token."""
        fit = conversation.preview(question.content, pinned=question.pinned)
        return Receipt(
            model=conversation.options.model,
            session=self.request.session,
            window=window_bar(conversation, fit, question),
            dropped=dropped_places(conversation, fit),
        ).model_dump()

    async def _stats(self, conversation: Conversation, answer: Answer) -> dict[str, Any]:
        call = answer.call
        notes = list(answer.notes)
        unsaved = await self.chat.ledger.saved()
        if unsaved:
            notes.append(unsaved)
        self.chat.ledger.metrics.cut(call)
        return Stats(
            call=call.id,
            prompt_tokens=call.prompt_tokens,
            cached_tokens=call.cached_tokens,
            output_tokens=call.output_tokens,
            ttft_ns=call.ttft_ns,
            ttft_answer_ns=call.ttft_answer_ns,
            tokens_per_s=call.decode_tokens_per_s or call.user_tokens_per_s,
            load_ns=call.load_ns,
            prefill_ns=call.prefill_ns,
            decode_ns=call.decode_ns,
            total_ns=call.total_ns,
            done_reason=call.done_reason,
            dropped=call.messages_dropped or 0,
            cut=call.cut,
            cut_evidence=call.cut_evidence,
            tool_calls=list(answer.tool_calls),
            notes=notes,
            session=self.request.session,
            messages=sum(m.role != "system" for m in conversation.messages),
        ).model_dump()

    def _record(self, call: Call, texts: tuple[str, str]) -> None:
        """Queue the row of each call the conversation makes, and count it once."""
        if call.id not in self._counted:
            self._counted.add(call.id)
            self.chat.ledger.metrics.count(ROUTE, call)
        if call.purpose == "answer":
            self.call = call
        self.chat.ledger.record(call, texts)


def _set_policy(conversation: Conversation, policy: Policy) -> None:
    """What was learned of one window says nothing of another."""
    if policy.window != conversation.policy.window:
        conversation.refused_n_ctx = conversation.num_ctx_loaded = None
    conversation.policy = policy


def _set_system(conversation: Conversation, system: str | None) -> None:
    """Put `system` first, in place of the one that stood there; None leaves things as they are."""
    if system is None:
        return
    messages = conversation.messages
    rest = messages[1:] if messages and messages[0].role == "system" else messages
    conversation.messages = [Message("system", system), *rest] if system else rest


def _forget_what_is_done(conversation: Conversation) -> None:
    """A conversation may live for hours: only its last answer is needed for the next one."""
    del conversation.answers[:-1]
    conversation.archive.clear()
    conversation.pairs = conversation.pairs[:200]


async def _fail(scope: Scope, send: Send, stream: EventStream, problem: Problem, call: Call | None) -> None:
    """An error with its own status where nothing has been sent, else the last event."""
    if not stream.started:
        await send_problem(scope, send, problem)
        return
    failure = Failure(error=problem.what, hint=problem.hint, status=problem.status, call=call.id if call else None)
    await stream.event(failure.model_dump(), "error")
    await stream.end()
