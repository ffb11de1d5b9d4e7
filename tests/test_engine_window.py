"""The window: what is loaded for what is asked, and what is left of a conversation."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.engine.window import fit, half, padded, without


def message(role: str, tokens: int) -> dict[str, Any]:
    return {"role": role, "content": "x" * tokens}


async def characters(messages: list[dict[str, Any]]) -> int:
    """A token a character and four for the template."""
    return sum(len(m["content"]) + 4 for m in messages)


@pytest.mark.parametrize(
    ("asked", "model", "loaded"),
    [
        (4096, 8192, 4096),
        (300, 8192, 512),
        (256, 8192, 256),
        (257, 8192, 512),
        (1, 8192, 256),
        (0, 8192, 256),
        (-5, 8192, 256),
        (16384, 8192, 8192),
        (2**40, 8192, 8192),
        (16384, None, 16384),
    ],
)
def test_the_window_that_is_loaded(asked: int, model: int | None, loaded: int) -> None:
    assert padded(asked, model) == loaded


def test_half_the_window_is_cut_as_ollama_does() -> None:
    tokens = list(range(1327))
    cut = half(tokens, 512, keep=4)
    assert cut == [0, 1, 2, 3, *range(1327 - 254, 1327)]
    assert len(cut) == 258


@pytest.mark.parametrize("keep", [-1, 0, 4, 100, 511, 512, 10**6])
def test_however_much_is_kept_the_cut_fits_and_holds_the_end(keep: int) -> None:
    tokens = list(range(5000))
    cut = half(tokens, 512, keep)
    assert len(cut) < 512
    assert cut[-1] == 4999 and cut == sorted(set(cut))


async def test_whole_messages_go_from_the_front_and_system_messages_stay() -> None:
    talk = [message("system", 20), *[message(role, 96) for _ in range(5) for role in ("user", "assistant")]]
    talk.append(message("user", 40))
    kept, tokens = await fit(talk, 412, characters)
    assert kept == [talk[0], *talk[-4:]]
    assert tokens == 24 + 44 + 300
    assert kept[1]["role"] == "assistant"  # an orphan: so does Ollama


async def test_what_fits_exactly_leaves_no_room_for_a_token() -> None:
    talk = [message("user", 252), message("assistant", 252), message("user", 252)]
    assert (await fit(talk, 512, characters))[1] == 256
    assert (await fit(talk, 513, characters))[1] == 512


async def test_a_last_message_that_is_too_long_alone_stays() -> None:
    talk = [message("system", 10), message("user", 50), message("user", 900)]
    assert await fit(talk, 512, characters) == ([talk[0], talk[2]], 918)
    assert await fit(talk[2:], 512, characters) == (talk[2:], 904)


@given(
    st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.integers(0, 300)), min_size=1, max_size=30),
    st.integers(256, 1024),
)
async def test_fit_drops_no_more_than_it_must(sizes: list[tuple[str, int]], n_ctx: int) -> None:
    talk = [message(role, tokens) for role, tokens in sizes]
    kept, tokens = await fit(talk, n_ctx, characters)
    assert kept[-1] == talk[-1]
    assert tokens == await characters(kept)
    assert [m for m in kept if m["role"] == "system"] == [m for m in talk if m["role"] == "system"]
    shorter = [without(talk, n) for n in range(1, len(talk))]
    fitting = [m for m in shorter if await characters(m) < n_ctx]
    if fitting:
        assert kept == fitting[0]
