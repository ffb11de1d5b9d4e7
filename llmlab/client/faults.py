"""Errors for people out of what a transport raised or a server answered."""

import base64
import email.utils
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin, urlsplit

import httpx

from llmlab.client.events import Fault
from llmlab.client.lines import parse
from llmlab.client.speech import find_number, said, unfold
from llmlab.errors import LabError, ServerError, SilenceTimeout, Unreachable

if TYPE_CHECKING:
    from llmlab.settings import Server

CONNECT_S = 5.0
WAYS_OUT = "Start Ollama with: ollama serve, or get the embedded engine with: pip install 'llmlab[engine]'"
GATEWAY = (502, 503, 504, 520, 521, 522, 523, 524)


def overflow_counts(error: ServerError) -> tuple[int, int] | None:
    """(prompt tokens, window) that a refusal of a too long prompt names, where the server counts them."""
    prompt, window = find_number(error.body, "n_prompt_tokens"), find_number(error.body, "n_ctx")
    return None if prompt is None or window is None else (prompt, window)


class Faults:
    """Words the errors of one server; its secrets never get into them."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.shown = server.shown
        self._secrets = sorted(forms_of_secrets(server), key=len, reverse=True)

    def scrub(self, text: str) -> str:
        """`text` without the secrets: servers like to repeat a wrong key."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def of_transport(self, error: Exception, timeout_s: float, *, answering: bool) -> LabError:
        """What a transport raised; `answering` says whether the answer had begun."""
        where = self.shown if self._server.source == "default" else f"{self.shown} (from {self._server.source})"
        if isinstance(error, httpx.ConnectTimeout):
            return Unreachable(f"no answer from {where} within {CONNECT_S:g} s", WAYS_OUT)
        if isinstance(error, httpx.ProxyError):
            return Unreachable(f"the proxy for {where} failed: {self.scrub(str(error))}", "Check the proxy's settings")
        if isinstance(error, httpx.ConnectError):
            return Unreachable(f"no server at {where}{reason_of(error)}", WAYS_OUT)
        if isinstance(error, httpx.TimeoutException):
            return SilenceTimeout(f"no data for {timeout_s:g} s from {self.shown}", "Allow more with --timeout")
        if isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL):
            return Unreachable(f"{where} is not an address that can be asked")
        if answering:
            return ServerError(f"{self.shown} broke off in mid-answer{reason_of(error)}", "See the server's log")
        return ServerError(f"{self.shown} closed the connection without an answer{reason_of(error)}")

    def of_stream(self, fault: Fault, http_status: int) -> ServerError:
        """An error inside a 200 stream, or an answer in another language."""
        what = self.scrub(f"{self.shown} {fault.what}" if fault.hint else f"{self.shown} failed: {fault.what}")
        body = fault.body if fault.body is None else parse(self.scrub(json.dumps(fault.body)).encode())
        return ServerError(what, fault.hint, http_status=http_status, body=body)

    def incomplete(self) -> ServerError:
        return ServerError(f"incomplete: the answer of {self.shown} ended before it was done", "See the server's log")

    def nothing_generated(self, reason: str) -> ServerError:
        return ServerError(
            f"nothing was generated: {self.shown} only did a '{reason}' of the model",
            "Send at least one user message",
            http_status=200,
        )

    def of_redirect(self, response: httpx.Response, path: str) -> ServerError:
        """A redirect is never followed: the body could be dropped and a key go to a stranger."""
        try:
            target = urljoin(f"{self._server.url}{path}", response.headers.get("location", ""))
            parts = urlsplit(target)
            place = f"{parts.netloc.rpartition('@')[2]}{parts.path.removesuffix(path)}"
            base = self.scrub(f"{parts.scheme}://{place}".rstrip("/"))
        except ValueError:
            base = ""
        return ServerError(
            f"{self.shown} redirects to {base or 'nowhere'}",
            f"Set OLLAMA_HOST or --host to {base}" if base else "Check the address",
            http_status=response.status_code,
        )

    def of_status(
        self, response: httpx.Response, raw: bytes, path: str, *, model: str | None = None, thinking: bool = False
    ) -> ServerError:
        """What a status other than 2xx means; `raw` is the (capped) body, `model` and `thinking` what was asked for."""
        status = response.status_code
        if 300 <= status < 400:
            return self.of_redirect(response, path)
        text = self.scrub(raw.decode("utf-8", "replace")).strip()
        body = unfold(parse(text.encode()) if text[:1] in ("{", "[", '"') else None)
        retry_s = retry_after_s(response.headers.get("retry-after"))
        hint: str | None
        if body is None and is_html(response, raw):
            what, hint = self._html(status)
        elif body is None and status == 404:
            what, hint = f"{self.shown} did not answer like {path} (404: {text[:80]})", "Check the address"
        else:
            words = self.scrub(text if body is None else said(body))  # JSON may have hidden a secret behind escapes
            what = f"{self.shown} answered {status}{': ' + words if words else ' without a word'}"
            if status == 403 and not words:
                hint = "The server refuses this Host or Origin: allow it with OLLAMA_ORIGINS on the server"
            else:
                hint = self._next(status, body, retry_s, model, thinking)
        return ServerError(what, hint, http_status=status, body=text if body is None else body, retry_after_s=retry_s)

    def _html(self, status: int) -> tuple[str, str]:
        proxy = f"the proxy {self._server.proxy_shown}" if self._server.proxy else "a proxy"
        what = f"got {status} from {proxy} in front of {self.shown} (an HTML page, not the server's answer)"
        if self._server.proxy:
            return what, "Put the host into NO_PROXY, or check the proxy"
        return what, "Raise the time limit of the proxy, or ask the server directly"

    def _next(self, status: int, body: object, retry_s: float | None, model: str | None, thinking: bool) -> str | None:
        """What to do after a refusal, by its status alone: wordings change."""
        link = body.get("signin_url") if isinstance(body, dict) else None
        if status == 401 and isinstance(link, str):
            return f"Sign in at {link}"
        if status == 401:
            return "Set LLMLAB_API_KEY to the server's key"
        if status == 400 and thinking:
            return "If the model cannot think, ask without thinking"
        if retry_s is not None:
            return f"Try again in {retry_s:g} s"
        if status in GATEWAY and self._server.proxy is not None:
            return f"The proxy {self._server.proxy_shown} was in use"
        if status in (429, 503):
            return "Try again later"
        return f"Get it with: ollama pull {model}" if status == 404 and model is not None else None


def forms_of_secrets(server: "Server") -> set[str]:
    """What a server could repeat of what it was sent: key, password or token, as they are, in a URL, in Base64."""
    name, password = server.user_info or ("", "")
    pair = base64.b64encode(f"{name}:{password}".encode()).decode() if server.user_info else ""
    proxy = unquote(urlsplit(server.proxy).password or "") if server.proxy else ""
    plain = filter(None, (server.key, password or name, proxy))
    forms = {form for secret in plain for form in (secret, quote(secret), quote(secret, safe=""))}
    return forms | ({pair, pair.rstrip("=")} if pair else set())


def unknown_model(name: str, shown: str, there: Sequence[str], *, ollama: bool, body: object = None) -> ServerError:
    """A 404 for a model, with the names of the models there are."""
    names = ", ".join(there[:12]) + (f" and {len(there) - 12} more" if len(there) > 12 else "")
    what = f"no model '{name}' at {shown}; there {f'are: {names}' if names else 'is none yet'}"
    hint = f"Get it with: ollama pull {name}" if ollama else "Choose a model with -m"
    return ServerError(what, hint, http_status=404, body=body)


def reason_of(error: Exception) -> str:
    """The cause in brackets, where there is one worth reading."""
    text = str(error).strip()
    return f" ({text})" if text else ""


def is_html(response: httpx.Response, raw: bytes) -> bool:
    return "html" in response.headers.get("content-type", "") or raw.lstrip()[:1] == b"<"


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which may be a number or a date."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        seconds = (when - datetime.now(UTC)).total_seconds()
    return round(max(0.0, seconds), 1) if seconds < 1e9 else None
