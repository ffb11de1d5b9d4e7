"""Charts: what is drawn of which runs, and that the pictures are text that runs nothing and loads nothing."""

import re
from collections.abc import Iterable
from html.parser import HTMLParser
from importlib.resources import files
from itertools import combinations
from xml.etree import ElementTree

import pytest
from lesson_runs import burst, lesson_calls, overflow_call, prompt_call, side

from llmlab.call import Call
from llmlab.report.charts import Chart, charts
from llmlab.report.document import Report
from llmlab.report.plot import round_ticks, thin_ticks
from llmlab.report.shape_table import shape_table
from llmlab.report.side import Side, plain

OVERFLOW = (
    overflow_call(2, "no_budget", True),
    overflow_call(12, "no_budget", False, prompt_tokens=700, cut="proved"),
    overflow_call(12, "truncate_false", None, outcome="error", http_status=400, prompt_tokens=None, cut=None),
    overflow_call(12, "budget_pin", True, prompt_tokens_estimate=560, prompt_tokens=590),
)


def lesson_side(number: int, label: str = "one", more: Iterable[Call] = OVERFLOW) -> Side:
    return side([*lesson_calls(number), *more], label, num_ctx=1024)


def drawn(*sides: Side) -> dict[str, Chart]:
    return {chart.name: chart for chart in charts(Report.of(sides))}


def tree(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.replace(' xmlns="http://www.w3.org/2000/svg"', ""))


def tips(svg: str) -> list[str]:
    """The texts on hover, in the order they are drawn."""
    return [node.text or "" for node in tree(svg).iter("title")]


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in tree(svg).iter("text")]


def test_all_five_charts_are_there_for_one_run_and_for_several() -> None:
    names = ["ttft", "speeds", "cold_warm", "users", "window"]
    one, two = drawn(lesson_side(1)), drawn(lesson_side(1), lesson_side(2, "two"))
    assert sorted(one) == sorted(two) == sorted(names)
    assert [len(one[name].panels) for name in names] == [1, 2, 1, 3, 1]
    assert [len(two[name].panels) for name in names] == [1, 2, 1, 3, 2]


def test_a_chart_without_measurements_is_not_drawn() -> None:
    assert drawn(side([])) == drawn() == {}
    assert list(drawn(side([prompt_call(100, 130, 7, 19, 8)]))) == ["ttft", "speeds"]


def test_one_run_is_drawn_in_its_units() -> None:
    found = drawn(lesson_side(1))
    (ttft,) = found["ttft"].panels
    assert tips(ttft) == [
        f"one, {n} tokens: {s} s – caution: n = 1" for n, s in (("130", 7), ("925", 60), ("2,745", 194))
    ]
    assert {"Time to first token, s", "prompt tokens", "7 s", "60 s", "194 s"} <= set(texts(ttft))
    prefill, decode = found["speeds"].panels
    assert {"Prefill speed, tok/s", "19", "15", "14"} <= set(texts(prefill))
    assert {"Decode speed, tok/s", "8.6", "7.5", "5.7"} <= set(texts(decode))
    assert {"Total speed of all users, tok/s", "users at once"} <= set(texts(found["users"].panels[1]))


def test_short_waits_are_drawn_in_milliseconds() -> None:
    (panel,) = drawn(side([prompt_call(100, 130, 0.02, 900, 80), prompt_call(900, 930, 0.15, 900, 80)]))["ttft"].panels
    assert {"Time to first token, ms", "20 ms", "150 ms"} <= set(texts(panel))


def test_several_runs_are_divided_by_their_first_row_as_the_shape_table_does() -> None:
    sides = [lesson_side(1), lesson_side(2, "two")]
    (panel,) = drawn(*sides)["ttft"].panels
    assert "Time to first token ÷ first row" in texts(panel)
    shape = next(row for row in shape_table(Report.of(sides)).rows if row[0].startswith("first token by prompt"))
    for label, relative in zip(("one", "two"), shape[1:3], strict=True):
        said = [
            m[1] for tip in tips(panel) if tip.startswith(label) and (m := re.search(r", ([\d.]+)× its first", tip))
        ]
        assert " → ".join(said) == relative
    assert any(tip.startswith("two, 2,745 tokens: 127 s, 25× its first row – caution: n = 1") for tip in tips(panel))


def test_whiskers_show_the_range_where_there_is_one() -> None:
    several = [prompt_call(100, 130, s, 19, 8.6) for s in (6.8, 7.1, 7.4)]
    (panel,) = drawn(side([*several, prompt_call(1000, 925, 60, 15, 7)]))["ttft"].panels
    assert tips(panel)[0] == "a, 130 tokens: 7.1 s (6.8–7.4, n = 3)"
    whiskers = [node for node in tree(panel).iter("g") if node.get("class") == "ci"]
    assert len(whiskers) == 1


def heights(panel: str, css_class: str) -> list[float]:
    return [
        float(re.findall(r"[-\d.]+", node.get("d", ""))[1])
        for group in tree(panel).iter("g")
        if group.get("class") == css_class
        for dots in group.iter("g")
        if dots.get("class") == "dots"
        for node in dots.iter("path")
    ]


def test_a_larger_value_is_drawn_higher_in_proportion() -> None:
    calls = [prompt_call(size, size, float(s), 19, 8) for size, s in ((100, 10), (200, 20), (400, 40))]
    (panel,) = drawn(side(calls))["ttft"].panels
    low, middle, high = heights(panel, "series run-0")
    assert low > middle > high
    assert (low - high) / (low - middle) == pytest.approx(3, rel=0.02)


def test_a_row_that_may_not_be_compared_is_hollow() -> None:
    calls = [prompt_call(100, 130, 7, 19, 8), prompt_call(1000, 925, 60, 15, 7)]
    other = [prompt_call(100, 130, 5, 19, 8), prompt_call(1000, 500, 60, 15, 7)]
    chart = drawn(side(calls), side(other, "b"))["ttft"]
    (panel,) = chart.panels
    assert "Hollow dots may not be compared" in chart.caption
    assert [node.get("class") for node in tree(panel).iter("path")].count("hollow") == 2
    assert any("not comparable: other prompt length" in tip for tip in tips(panel))


def test_the_staircase_has_a_step_per_user_of_the_largest_burst() -> None:
    waits, total, stairs = drawn(side(burst(2, 4.0, 7) + burst(4, 8.0, 7)))["users"].panels
    assert [tip.split(": ")[1].split(" –")[0] for tip in tips(stairs)] == ["4 s", "6.7 s", "9.3 s", "12 s"]
    assert tips(stairs)[0] == "a, user 1 of 4: 4 s"
    assert {"4 s", "12 s"} <= set(texts(stairs))
    assert any("4 users, the last one: 12 s" in tip for tip in tips(waits))
    assert len(tips(total)) == 2


def test_cold_and_warm_are_bars_in_the_order_of_the_table() -> None:
    (panel,) = drawn(lesson_side(1))["cold_warm"].panels
    assert [t for t in texts(panel) if t in ("first time", "again")] == ["again", "first time"]
    widths = [float(node.get("width", 0)) for node in tree(panel).iter("rect")]
    assert max(widths) / min(widths) > 100
    assert {"194 s", "0.2 s"} <= set(texts(panel))


def test_the_window_picture_tells_read_lost_left_out_and_refused() -> None:
    chart = drawn(lesson_side(1))["window"]
    (panel,) = chart.panels
    assert [key.label for key in chart.keys] == [
        "read by the model",
        "lost, cut by the server",
        "left out by the budget",
        "refused by the server",
    ]
    said = {tip.split(" – ")[0] for tip in tips(panel)}
    assert said == {
        "2, no budget: 280 tokens read by the model",
        "12, no budget: 700 tokens read by the model",
        "12, no budget: about 740 tokens lost, cut by the server",
        "12, truncate: false: about 1,440 tokens refused by the server",
        "12, budget and pin: 590 tokens read by the model",
        "12, budget and pin: about 880 tokens left out by the budget",
    }
    assert "window 1,024" in texts(panel)
    assert "12 turns, no budget – remembered? no: cut by the server" in texts(panel)


def test_several_windows_are_drawn_as_parts_of_themselves() -> None:
    chart = drawn(lesson_side(1), lesson_side(2, "two"))["window"]
    assert all("window" in texts(panel) for panel in chart.panels)
    assert "two, window of 1,024 tokens" in texts(chart.panels[1])


def test_an_uncounted_conversation_is_drawn_as_sent() -> None:
    calls = [overflow_call(2, "no_budget", True, prompt_tokens=None, cut=None)]
    chart = drawn(side(calls))["window"]
    assert [key.label for key in chart.keys] == ["sent; the server does not say what was read"]


class Tags(HTMLParser):
    """Collects what could run or load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


EVIL = "<script>alert(1)</script>|\\ \n\x00\x1b[31m&\ud800 \"'=cmd()" + "x" * 500


def test_pictures_hold_no_script_no_reference_no_style_and_no_id() -> None:
    calls = [*lesson_calls(1), *OVERFLOW, prompt_call(5, 5, 1, 1, 1, variant=EVIL), overflow_call(3, EVIL, True)]
    for sides in ((side(calls, plain(EVIL)),), (side(calls, plain(EVIL)), side(calls, plain(f"2{EVIL}")))):
        for chart in drawn(*sides).values():
            for panel in chart.panels:
                found = Tags(panel)
                assert found.tags <= {"svg", "g", "path", "rect", "text", "title"}
                assert not found.attributes & {"id", "style", "href", "xlink:href", "src", "onload", "onclick"}
                assert "url(" not in panel and "Generated" not in panel
                ElementTree.fromstring(panel)


def test_the_same_runs_give_the_same_picture() -> None:
    pictures = [[c.panels for c in charts(Report.of([lesson_side(1), lesson_side(2, "two")]))] for _ in range(2)]
    assert pictures[0] == pictures[1]


def test_a_picture_is_told_in_words() -> None:
    (panel,) = drawn(lesson_side(1))["ttft"].panels
    root = tree(panel)
    assert root.get("role") == "img"
    assert root.get("aria-label", "").startswith("Time to first token, s against prompt tokens. one, 130 tokens: 7 s")


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (194, [0, 50, 100, 150, 200]),
        (0.3, [0, 0.1, 0.2, 0.3]),
        (1, [0, 0.25, 0.5, 0.75, 1]),
        (0, [0, 1]),
        (1e-6, [0, 2.5e-7, 5e-7, 7.5e-7, 1e-6]),
        (1e-15, [0, 2.5e-16, 5e-16, 7.5e-16, 1e-15]),
        (9e18, [0, 2.5e18, 5e18, 7.5e18, 1e19]),
    ],
)
def test_axes_have_round_ticks(most: float, ticks: list[float]) -> None:
    assert round_ticks(most) == pytest.approx(ticks)
    assert round_ticks(most)[-1] >= most


def test_ticks_that_would_collide_are_left_out() -> None:
    assert thin_ticks([1, 2, 4, 8]) == [0, 1, 2, 4, 8]
    assert thin_ticks([1, 2, 4, 8, 16, 32, 64]) == [0, 8, 16, 32, 64]


def colours(dark: bool) -> list[str]:
    light, _, rest = files("llmlab.report").joinpath("charts.css").read_text().partition("@media screen")
    return re.findall(r"--run-\d: (#[0-9a-f]{6})", rest if dark else light)


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def luminance(colour: str) -> float:
    r, g, b = linear(colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize(("dark", "ground"), [(False, "#ffffff"), (True, "#12181f")])
def test_every_run_stands_out_from_the_ground(dark: bool, ground: str) -> None:
    assert len(colours(dark)) == 8
    for colour in colours(dark):
        high, low = sorted((luminance(colour), luminance(ground)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3, colour


# Machado, Oliveira, Fernandes 2009, full severity.
BLIND = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def seen(colour: str, eyes: str) -> tuple[float, float, float]:
    """CIE L*a*b* of a colour as such eyes see it."""
    rgb = [max(0.0, sum(m * c for m, c in zip(row, linear(colour), strict=True))) for row in BLIND[eyes]]
    xyz = [
        sum(m * c for m, c in zip(row, rgb, strict=True)) / white
        for row, white in zip(
            ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)),
            (0.9505, 1, 1.089),
            strict=True,
        )
    ]
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("eyes", BLIND)
@pytest.mark.parametrize("dark", [False, True])
def test_the_first_four_runs_keep_apart_for_colour_blind_eyes(eyes: str, dark: bool) -> None:
    """Further runs differ by dashes and the shape of their dots as well."""
    for a, b in combinations(colours(dark)[:4], 2):
        distance = sum((p - q) ** 2 for p, q in zip(seen(a, eyes), seen(b, eyes), strict=True)) ** 0.5
        assert distance > 18, (a, b)
