"""The text of an answer while it streams: halves of characters, and reasoning in tags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.client.deltas import Deltas, whole_characters
from llmlab.client.events import Kind, Piece


def show(*texts: str, cut: bool = False, kind: Kind = "content") -> Deltas:
    deltas = Deltas()
    for text in texts:
        deltas.feed(Piece(kind, text))
    deltas.rest(cut)
    return deltas


def split(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize(
    ("text", "answer", "thinking"),
    [
        ("<think>planning</think>\n\nDone.", "Done.", "planning"),
        ("<think>\n\n</think>\n\nHi", "Hi", "\n\n"),
        ("A <think>b</think> c <think>d</think>e", "A c e", "bd"),
        ("Use `<think>` and `</think>` tags.", "Use `<think>` and `</think>` tags.", ""),
        ("```\n<think>x</think>\n```\nok", "```\n<think>x</think>\n```\nok", ""),
        ("```xml\n<think>\n```\n<think>y</think>z", "```xml\n<think>\n```\nz", "y"),
        ("if a <b and c< d: <table>", "if a <b and c< d: <table>", ""),
        ("a<thinker>b", "a<thinker>b", ""),
        ("ends with <thi", "ends with <thi", ""),
        ("<think>never closed", "<think>never closed", ""),
        ("before\n<think>\nliteral</thin", "before\n<think>\nliteral</thin", ""),
        ("only a close</think> tag", "only a close</think> tag", ""),
    ],
)
def test_reasoning_in_tags_is_kept_out_however_it_is_cut(text: str, answer: str, thinking: str) -> None:
    for size in range(1, len(text) + 1):
        deltas = show(*split(text, size))
        assert (deltas.text, deltas.thinking) == (answer, thinking)


def test_an_answer_cut_while_thinking_has_no_answer() -> None:
    deltas = show("<think>still ", "plan", "ning", cut=True)
    assert (deltas.text, deltas.thinking) == ("", "still planning")


def test_reasoning_streams_while_it_comes() -> None:
    deltas = Deltas()
    assert list(deltas.feed(Piece("content", "<think>a"))) == [Piece("thinking", "a")]
    assert list(deltas.feed(Piece("content", "b</think>c"))) == [Piece("thinking", "b"), Piece("content", "c")]


def test_a_plain_piece_passes_as_it_is() -> None:
    piece = Piece("content", "plain")
    assert Deltas().feed(piece)[0] is piece


@pytest.mark.parametrize("kind", ["content", "thinking"])
def test_halves_in_neighbouring_pieces_are_joined(kind: Kind) -> None:
    deltas = show("ok \ud83d", "\ude00 end", kind=kind)
    assert (deltas.text or deltas.thinking) == "ok 😀 end"


@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        (["a\ud83d", "b"], "a\ufffdb"),
        (["a\ude00b"], "a\ufffdb"),
        (["a", "\ud83d"], "a\ufffd"),
        (["\ud83d", "\ud83d", "\ude00"], "\ufffd😀"),
        (["\ud83d<think>x</think>y"], "\ufffdy"),
    ],
)
def test_a_half_left_alone_is_replaced_once(texts: list[str], answer: str) -> None:
    assert show(*texts).text == answer


@given(st.text(alphabet=st.characters(), max_size=60) | st.text("<think>/`\n ab😀", max_size=60), st.integers(1, 9))
def test_text_does_not_depend_on_how_it_is_cut(text: str, size: int) -> None:
    whole, cut = show(text), show(*split(text, size))
    assert (cut.text, cut.thinking) == (whole.text, whole.thinking)


@given(st.text("<think>/`\n ab\ud83d\ude00", max_size=60), st.integers(1, 9), st.booleans())
def test_text_can_always_be_encoded_and_nothing_is_shown_twice(text: str, size: int, cut: bool) -> None:
    deltas, shown = Deltas(), []
    for piece in split(text, size):
        shown += deltas.feed(Piece("content", piece))
    shown += deltas.rest(cut)
    deltas.text.encode()
    deltas.thinking.encode()
    assert "".join(piece.text for piece in shown if piece.kind == "content") == deltas.text
    assert all(piece.text for piece in shown)


def test_whole_characters_leaves_good_text_alone() -> None:
    for text in ("plain", "naïve 中🙂"):
        assert whole_characters(text) is text
    assert whole_characters("\ud83d\ude00") == "😀"
