"""What the command line may load before a command runs: help has to answer at once."""

import subprocess
import sys

import pytest

HEAVY = {"asyncio", "datasette", "fastapi", "httptools", "httpx", "prompt_toolkit", "psutil", "pygal", "rich"}
HEAVY |= {"sqlite3", "sqlite_utils", "starlette", "uvicorn", "uvloop", "xllamacpp", "ollama", "openai", "platformdirs"}
PURE = ("budget", "call", "cut", "errors", "messages", "model", "options", "run", "settings", "tokens")


def loaded(code: str) -> set[str]:
    """The top-level modules in memory after `code` ran in a fresh interpreter."""
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("args", [["--help"], ["chat", "--help"], ["bench", "--help"], ["--version"], ["db", "path"]])
def test_help_loads_nothing_heavy(args):
    code = f"from llmlab.cli import app\ntry:\n    app({args!r})\nexcept SystemExit: pass"
    found = loaded(code) & HEAVY
    assert found <= ({"platformdirs"} if args == ["db", "path"] else set())


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_loads_nothing_heavy(name):
    assert not loaded(f"import llmlab.{name}") & HEAVY


def test_only_the_store_loads_sqlite_utils_and_only_serve_and_engine_load_fastapi():
    client = loaded("import llmlab.client, llmlab.conversation, llmlab.budget, llmlab.report, llmlab.bench")
    assert not client & {"fastapi", "starlette", "uvicorn", "prompt_toolkit", "pygal", "datasette"}
    assert not loaded("import llmlab.client") & {"sqlite_utils", "sqlite3"}
