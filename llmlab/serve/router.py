"""The router: each request goes to what answers it, and whatever goes wrong becomes an answer."""

from collections.abc import Callable
from contextlib import suppress

from llmlab.serve.asgi import App, ClientLeft, Receive, Scope, Send, read_body
from llmlab.serve.asked import PROTOCOLS
from llmlab.serve.chat_events import ChatEvents
from llmlab.serve.guard import BodyRefused
from llmlab.serve.passage import Passage
from llmlab.serve.problem import Problem, fault_of, send_problem
from llmlab.serve.proxy import Proxy

ONLY_POST = Problem(405, "this is asked with POST only", "What there is: /openapi.json", headers=((b"allow", b"POST"),))


class Router:
    """Streams are answered in bare ASGI, where a client that leaves is noticed at once; the rest are `pages`.

    `tell` gets one line for each fault of our own.
    """

    def __init__(
        self, chat: ChatEvents, proxy: Proxy, passage: Passage, pages: App, tell: Callable[[str], None]
    ) -> None:
        self.chat = chat
        self.proxy = proxy
        self.passage = passage
        self.pages = pages
        self.tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._route(scope, receive, send)
        except ClientLeft:
            return
        except BodyRefused as refused:
            await send_problem(scope, send, refused.problem)
        except Exception as error:
            problem = fault_of(error)
            self.tell(f"Error: {problem.what}, while answering {scope['path'][:80]!r}")
            # Where the answer has begun, nothing more is sent, and the client sees that it was cut.
            with suppress(RuntimeError):
                await send_problem(scope, send, problem)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if method == "POST" and path in PROTOCOLS:
            await self.proxy.answer(PROTOCOLS[path], await read_body(receive), scope, receive, send)
        elif path in ("/chat", "/window") and method != "POST":
            await send_problem(scope, send, ONLY_POST)
        elif path == "/chat":
            await self.chat.answer(await read_body(receive), scope, receive, send)
        elif path == "/window":
            await self.chat.fill(await read_body(receive), scope, send)
        elif path.startswith(("/api/", "/v1/")) or (method == "HEAD" and path == "/"):
            await self.passage.answer(await read_body(receive), scope, receive, send)
        else:
            await self.pages(scope, receive, send)
