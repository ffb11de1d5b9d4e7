"""The embedded engine for tests: one for the whole session, with the real default model.

Import the fixture where it is needed, `from engine_fixture import engine`, and mark the tests with `engine`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmlab.engine import Engine


def cache() -> Path | None:
    """Where the weights are kept: the ordinary cache folder (None) unless LLMLAB_CACHE names another."""
    folder = os.environ.get("LLMLAB_CACHE")
    return Path(folder) if folder else None


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A running engine with `url` and `model`: two slots, a queue of two, one thread, 1,024 tokens loaded."""
    with Engine.start(cache=cache(), num_parallel=2, max_queue=2, threads=1, num_ctx=1024) as running:
        yield running
