"""Child processes that end with their parent: each lives only as long as its standard input stays open."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

ROOT = str(Path(__file__).parents[2])
# -P: a module in the folder where the user happens to be must not take the place of one of ours.
RUN = "import sys; sys.path.append(sys.argv[1]); from llmlab.engine.{module} import main; main()"


def command(module: str) -> list[str]:
    """The command line that runs `main()` of a module of this package."""
    return [sys.executable, "-P", "-c", RUN.format(module=module), ROOT]


def detached() -> dict[str, Any]:
    """Popen arguments that take a child out of the terminal's process group: Ctrl-C is for the parent alone."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def when_parent_ends(stdin: BinaryIO, act: Callable[[], object]) -> None:
    """Call `act` in a thread of its own once the parent has closed our standard input or died."""

    def wait() -> None:
        while stdin.read(4096):
            continue
        act()

    threading.Thread(target=wait, name="parent", daemon=True).start()


def take_stdout() -> int:
    """A file descriptor for the one line the parent reads; whatever a library prints goes to stderr instead."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own
