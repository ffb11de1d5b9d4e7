"""An answer that loops is noticed; one that only repeats a little, or lists things, is not."""

import pytest

from llmlab.engine.loop import LoopWatch, loops

PARAGRAPH = "I am here to help you with your writing, whether it is a novel, a romance or a poem of any kind.\n\n"


@pytest.mark.parametrize("phrase", ["a", "no ", "ha ha, ", PARAGRAPH, PARAGRAPH + "And I am here for more than that. "])
def test_a_phrase_that_goes_on_for_ever_is_a_loop(phrase):
    assert loops("Once upon a time. " + phrase * (1 + 3000 // len(phrase)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        PARAGRAPH * 3,
        "ha " * 100,
        "\n".join(f"{n}. The same line with another number" for n in range(200)),
        PARAGRAPH * 8 + "But now something new comes.",
    ],
)
def test_ordinary_repetition_is_not(text):
    assert not loops(text)


def test_the_watch_sees_it_however_the_text_is_cut():
    for width in (1, 7, 500):
        watch = LoopWatch()
        text = PARAGRAPH * 12
        assert any(watch.sees_loop(text[i : i + width]) for i in range(0, len(text), width))
