"""The embedded engine for tests: one for the whole session, with the real default model.

Import the fixture where it is needed, `from engine_fixture import engine`, and mark the tests with `engine`.
"""

import atexit
import functools
import os
from pathlib import Path

import pytest

from llmlab.engine import Engine


def cache() -> Path | None:
    """Where the weights are kept: the ordinary cache folder (None) unless LLMLAB_CACHE names another."""
    folder = os.environ.get("LLMLAB_CACHE")
    return Path(folder) if folder else None


@functools.cache
def shared() -> Engine:
    """One engine for all modules: pytest would set an imported fixture up once for each module that imports it."""
    running = Engine.start(cache=cache(), num_parallel=2, max_queue=2, threads=1, num_ctx=1024)
    atexit.register(running.stop)
    return running


@pytest.fixture(scope="session")
def engine() -> Engine:
    """A running engine with `url` and `model`: two slots, a queue of two, one thread, 1,024 tokens loaded."""
    return shared()
