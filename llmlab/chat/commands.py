"""The commands of a chat: lines that start with a slash."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from llmlab.chat.receipt import receipt
from llmlab.errors import StoreError, UsageError
from llmlab.messages import Message

if TYPE_CHECKING:
    from llmlab.chat import Talk

PREVIEW = 60


class Leave(Exception):
    """The user wants to leave."""


async def run_command(talk: "Talk", text: str) -> bool:
    """Run `text` where it is a command; False where it is a message, as `/pin TEXT` is. UsageError: misspelt."""
    word, _, rest = text.partition(" ")
    name = word.removeprefix("/")
    if not word.startswith("/") or "/" in name or name == "pin":
        return False
    if name not in COMMANDS:
        raise UsageError(f"no command {word}", "/help lists them")
    action, _ = COMMANDS[name]
    assert action is not None
    await action(talk, rest.strip())
    return True


async def _pins(talk: "Talk", _: str) -> None:
    pinned = _pinned(talk)
    for number, message in enumerate(pinned, 1):
        talk.screen.note(f"{number}. {message.role}: {_shortened(message)}")
    if not pinned:
        talk.screen.note("nothing is pinned · /pin TEXT sends a text and keeps it")


async def _unpin(talk: "Talk", rest: str) -> None:
    pinned = _pinned(talk)
    if not rest.isdecimal() or not 1 <= int(rest) <= len(pinned):
        raise UsageError("/unpin needs a number of /pins", f"There are {len(pinned)}")
    target = pinned[int(rest) - 1]
    conversation = talk.conversation
    conversation.messages = [m.pin(False) if m is target else m for m in conversation.messages]
    talk.screen.note(f"unpinned: {_shortened(target)}")


async def _budget(talk: "Talk", rest: str) -> None:
    if rest not in ("on", "off", ""):
        raise UsageError("/budget takes on or off")
    if rest:
        talk.conversation.set_budget(rest == "on")
    window = talk.conversation.window
    if window is None:
        talk.screen.note("budget off: the server decides what is lost")
    else:
        talk.screen.note(
            f"budget on: {window.limit:,} of {window.num_ctx:,} tokens, {window.reserve:,} kept for the answer"
        )


async def _receipt(talk: "Talk", _: str) -> None:
    if not talk.conversation.answers:
        raise UsageError("there is no answer yet")
    for line in receipt(talk.conversation.answers[-1]):
        talk.screen.note(line)


async def _thinking(talk: "Talk", _: str) -> None:
    for line in (talk.thinking or "the last answer came without thinking").splitlines():
        talk.screen.note(line)


async def _retry(talk: "Talk", _: str) -> None:
    text = talk.failed
    if text is None:
        last = talk.conversation.take_back()
        if last is None:
            raise UsageError("there is nothing to retry yet")
        text = f"/pin {last.content}" if last.pinned else last.content
    await talk.turn(text)


async def _save(talk: "Talk", rest: str) -> None:
    if not rest:
        raise UsageError("/save needs a file name", "For example: /save talk.md")
    path = Path(rest).expanduser()
    messages = [*talk.conversation.archive, *talk.conversation.messages]
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_as_file(messages, path.suffix == ".json"))
    except FileExistsError:
        raise UsageError(f"{path} exists", "Choose another name") from None
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
    talk.screen.note(f"saved {len(messages)} messages to {path}")


async def _help(talk: "Talk", _: str) -> None:
    for name, (_action, text) in COMMANDS.items():
        talk.screen.note(f"/{name:<10} {text}")
    talk.screen.note("Alt-Enter starts a new line, Ctrl-C stops an answer")


async def _exit(talk: "Talk", _: str) -> None:
    raise Leave


Command = Callable[["Talk", str], Awaitable[None]]
COMMANDS: dict[str, tuple[Command | None, str]] = {
    "pin": (None, "TEXT: send TEXT and keep it, question and answer, whatever is dropped"),
    "pins": (_pins, "what is pinned"),
    "unpin": (_unpin, "N: let go of a pinned message"),
    "budget": (_budget, "on|off: keep to the window, or let it overflow"),
    "receipt": (_receipt, "where the time of the last answer went"),
    "thinking": (_thinking, "what the model thought before its last answer"),
    "retry": (_retry, "ask the last question again"),
    "save": (_save, "FILE: write the conversation to a new file, .md or .json"),
    "help": (_help, "this list"),
    "exit": (_exit, "leave, as Ctrl-D does"),
}


def _pinned(talk: "Talk") -> list[Message]:
    return [m for m in talk.conversation.messages if m.pinned]


def _shortened(message: Message) -> str:
    text = " ".join(message.content.split())
    return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"


def _as_file(messages: list[Message], as_json: bool) -> str:
    if as_json:
        rows = [{**m.to_wire(), **({"pinned": True} if m.pinned else {})} for m in messages]
        return json.dumps({"messages": rows}, ensure_ascii=False, indent=1) + "\n"
    return "\n".join(f"## {m.role}{' (pinned)' if m.pinned else ''}\n\n{m.content}\n" for m in messages)
