"""The prompt of an interactive chat: history, multi-line paste, and a bottom line that shows the window."""

from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from llmlab.chat.commands import COMMANDS, Leave, run_command
from llmlab.errors import Exit, LabError
from llmlab.settings import data_folder

if TYPE_CHECKING:
    from llmlab.chat import Talk
    from llmlab.conversation import Conversation

GREETING = "{model} at {server} · /help lists the commands, Ctrl-D leaves"


async def converse(talk: "Talk") -> Exit:
    """Ask at the terminal until the user leaves; an error ends a turn, never the conversation."""
    talk.screen.note(GREETING.format(model=talk.target.model.name, server=talk.target.server.shown))
    session = _session(talk)
    interrupted = False
    while True:
        try:
            text = (await session.prompt_async("> ", bottom_toolbar=lambda: bottom_line(talk.conversation))).strip()
            if text:
                await _respond(talk, text)
            interrupted = False
        except KeyboardInterrupt:
            if interrupted:
                return Exit.INTERRUPTED
            interrupted = True
            talk.screen.note("stopped · Ctrl-C again or Ctrl-D leaves")
        except (EOFError, Leave):
            return Exit.OK


async def _respond(talk: "Talk", text: str) -> None:
    try:
        if not await run_command(talk, text):
            await talk.turn(text)
    except LabError as error:
        talk.screen.note(f"Error: {error}")
        if talk.failed:
            talk.screen.note("the conversation is as it was · /retry asks again")


def _session(talk: "Talk") -> "PromptSession[str]":
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    history = _kept_history() if talk.settings.keep_text else InMemoryHistory()
    commands = WordCompleter([f"/{name}" for name in COMMANDS], sentence=True)
    return PromptSession(history=history, key_bindings=keys, completer=commands, complete_while_typing=False)


def _kept_history() -> History:
    """What was typed, in a file for its owner alone; only of this conversation where no file can be made."""
    file = data_folder() / "chat_history"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


def bottom_line(conversation: "Conversation") -> str:
    """`window 1,234 / 3,584 · 2 pinned · next: warm`, for what stands at the prompt now."""
    typed = get_app().current_buffer.text
    pinned = sum(m.pinned for m in conversation.messages)
    pins = f" · {pinned} pinned" if pinned else ""
    if conversation.window is None:
        return f"no budget: the server decides what is lost{pins}"
    try:
        fit = conversation.preview(typed or " ")
    except LabError as error:
        return f"too long: {error.what}"
    assert fit is not None
    if fit.cold:
        cut = fit.last_cut
        turns = cut.turns if cut else 0
        following = f"next turn drops the oldest {turns} turns and is read anew"
    else:
        following = "next: warm" if conversation.answers else "next: cold, it is the first"
    return f"window {fit.used:,} / {fit.limit:,}{pins} · {following}"
