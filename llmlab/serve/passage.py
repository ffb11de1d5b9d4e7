"""The passage: the rest of both protocols goes through unrecorded, but nothing that changes the server's models."""

import httpx

from llmlab.client.door import arrivals_of
from llmlab.serve.asgi import Headers, Receive, Scope, Send, header
from llmlab.serve.attendance import Attendance, End
from llmlab.serve.problem import Problem, busy, problem_of, send_problem
from llmlab.serve.relay import scrubbed
from llmlab.target import Target

CLOSED = ("pull", "push", "create", "copy", "delete", "blobs")
METHODS = ("GET", "HEAD", "POST")
PASSED_ON = ("content-type", "retry-after", "www-authenticate", "cache-control", "etag", "location")


class Passage:
    """Passes requests to the server and its answers back."""

    def __init__(self, target: Target, attendance: Attendance) -> None:
        self._client = target.client
        self._attendance = attendance

    async def answer(self, raw: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the request whose body is `raw`, as long as the client is there."""
        problem = refusal(scope["method"], scope["path"])
        if problem is not None:
            await send_problem(scope, send, problem)
            return
        crossing = Crossing(send)
        end = await self._attendance.run(receive, self._pass(raw, scope, crossing))
        if end is End.DISMISSED and not crossing.started:
            await send_problem(scope, send, busy("llmlab is stopping", "Ask again when it is back"))

    async def _pass(self, raw: bytes, scope: Scope, crossing: "Crossing") -> None:
        door, response = self._client.door, None
        try:
            response = await door.send(self._request(raw, scope))
            if response.is_error:
                await crossing.refuse(response, scrubbed(door, await door.read(response)))
            else:
                await crossing.relay(response)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            if not crossing.started:
                fault = door.faults.of_transport(error, self._client.timeout_s, answering=response is not None)
                await send_problem(scope, crossing.send, problem_of(fault))
        finally:
            if response is not None:
                await arrivals_of(response).aclose()

    def _request(self, raw: bytes, scope: Scope) -> httpx.Request:
        """The request with the fixed set of headers, besides what describes its body."""
        request = self._client.door.request(scope["method"], "/", raw or None)
        query = scope["query_string"]
        path = scope["raw_path"] + (b"?" + query if query else b"")
        request.url = request.url.copy_with(raw_path=request.url.raw_path.rstrip(b"/") + path)
        kind = header(scope, b"content-type")
        if kind is not None:
            request.headers["content-type"] = kind
        return request


class Crossing:
    """The answer of one request on its way to the client."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.started = False

    async def refuse(self, response: httpx.Response, raw: bytes) -> None:
        """Send on an error, whose body is `raw`."""
        self.started = True
        headers = [(name, value) for name, value in passed(response) if name != b"content-length"]
        headers.append((b"content-length", str(len(raw)).encode()))
        await self.send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        await self.send({"type": "http.response.body", "body": raw})

    async def relay(self, response: httpx.Response) -> None:
        """Send the answer on as it comes."""
        arrivals = arrivals_of(response)
        await arrivals.more()
        chunks = arrivals.take()
        self.started = True
        await self.send({"type": "http.response.start", "status": response.status_code, "headers": passed(response)})
        while chunks:
            data = b"".join([data for _, data in chunks])
            await self.send({"type": "http.response.body", "body": data, "more_body": True})
            await arrivals.more()
            chunks = arrivals.take()
        await self.send({"type": "http.response.body", "body": b""})


def passed(response: httpx.Response) -> Headers:
    """The headers that a client may see of the server's; its length where the body came as it was sent."""
    names = PASSED_ON if "content-encoding" in response.headers else (*PASSED_ON, "content-length")
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name in names
        if (value := response.headers.get(name)) is not None
    ]


def refusal(method: str, path: str) -> Problem | None:
    """Why a request is not passed on; None where it is."""
    parts = path.split("/")[1:]
    if any(part in (".", "..") or "\\" in part or not part.isprintable() for part in parts):
        return Problem(404, f"no path {path[:80]!r}")
    words = [part.lower() for part in parts if part]
    if words[:1] == ["api"] and len(words) > 1 and words[1] in CLOSED:
        hint = "Do it with the server's own tools"
        return Problem(403, f"llmlab passes nothing on that changes the server's models (/api/{words[1]})", hint)
    if method not in METHODS:
        return Problem(405, f"{method} is not passed on", headers=((b"allow", b"GET, HEAD, POST"),))
    return None
