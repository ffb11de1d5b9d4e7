"""The recording proxies: a client's request goes to the server, the answer's bytes come back as they came."""

from llmlab.errors import LabError
from llmlab.serve.asgi import Receive, Scope, Send
from llmlab.serve.asked import Asked, Protocol, read_asked
from llmlab.serve.attendance import Attendance, End
from llmlab.serve.chat_events import FULL, STOPPING
from llmlab.serve.fitting import Fitting
from llmlab.serve.gate import Full, Gate
from llmlab.serve.ledger import Ledger
from llmlab.serve.passage import Passage
from llmlab.serve.problem import Problem, busy, problem_of, send_problem
from llmlab.serve.relay import Cut, Relay


class Proxy:
    """Answers the recorded paths of both protocols."""

    def __init__(self, ledger: Ledger, gate: Gate, attendance: Attendance, fitting: Fitting, passage: Passage) -> None:
        self.ledger = ledger
        self.gate = gate
        self.attendance = attendance
        self.fitting = fitting
        self.passage = passage

    async def answer(self, protocol: Protocol, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay the request whose body is `raw`, as long as the client is there."""
        asked = read_asked(protocol, raw)
        if isinstance(asked, Problem):
            await send_problem(scope, send, asked)
        elif not asked.generates:
            await self.passage.answer(raw, scope, receive, send)
        else:
            relay = Relay(self.ledger, asked, send)
            end = await self.attendance.run(receive, self._relay(asked, relay, scope, send))
            if end is End.DISMISSED and not relay.started:
                await send_problem(scope, send, busy(STOPPING, "Ask again when it is back"))

    async def _relay(self, asked: Asked, relay: Relay, scope: Scope, send: Send) -> None:
        try:
            async with self.gate.place():
                await self.ledger.room()
                await relay.run(self.fitting)
            return
        except Cut:
            # Nothing more is sent: an answer without its end is how the client sees that it was cut.
            return
        except Full as full:
            self.ledger.metrics.refused(asked.protocol.path)
            problem = busy(FULL, "Ask again later", full.retry_after_s)
        except LabError as error:
            problem = problem_of(error)
        await send_problem(scope, send, problem, relay.headers)
