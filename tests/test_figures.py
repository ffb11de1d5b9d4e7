"""Figures: what people read, from the nanoseconds and counts that were measured."""

import math

import pytest

from llmlab.figures import (
    Figure,
    format_count,
    format_percent,
    format_range,
    format_ratio,
    format_seconds,
    format_speed,
    format_value,
    ratio,
)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (7, "7 s"),
        (7.1, "7.1 s"),
        (0.2, "0.2 s"),
        (0.84, "0.84 s"),
        (194, "194 s"),
        (9.96, "10 s"),
        (0.18, "180 ms"),
        (0.0123, "12 ms"),
        (0.0012, "1.2 ms"),
        (0.1996, "0.2 s"),
        (1234.5, "1,234 s"),
        (0, "0 s"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_seconds_are_readable(seconds: float | None, shown: str) -> None:
    assert format_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("speed", "shown"), [(4.3, "4.3 tok/s"), (0.95, "0.95 tok/s"), (152.4, "152 tok/s"), (7, "7 tok/s"), (None, "–")]
)
def test_speeds_are_readable(speed: float | None, shown: str) -> None:
    assert format_speed(speed) == shown


def test_counts_ratios_and_percentages_are_readable() -> None:
    assert [format_count(v) for v in (2745, 2.5, 0, None)] == ["2,745", "2.5", "0", "–"]
    assert [format_ratio(v) for v in (27.7, 1.5, 0.74, 973.0, None)] == ["28×", "1.5×", "0.74×", "973×", "–"]
    assert [format_percent(v, sign=True) for v in (0.12, -0.26, 0.001, None)] == ["+12 %", "−26 %", "0 %", "–"]


def test_the_name_tells_the_unit() -> None:
    assert format_value("ttft_ns", 7_000_000_000) == "7 s"
    assert format_value("prefill_tokens_per_s", 19) == "19 tok/s"
    assert format_value("prompt_tokens", 2745) == "2,745"


def range_of(name: str, *samples: float) -> str:
    figure = Figure.of(samples)
    assert figure is not None and figure.n == len(samples)
    return format_range(name, figure)


def test_a_figure_shows_its_range_in_the_unit_of_its_median() -> None:
    assert range_of("ttft_ns", 7.1e9, 6.8e9, 7.4e9, 7.0e9, 7.2e9) == "6.8–7.4"
    assert range_of("ttft_ns", 0.19e9, 0.18e9, 0.21e9) == "180–210"
    assert range_of("ttft_ns", 17.1e9, 17.2e9) == ""
    assert range_of("decode_tokens_per_s", 5.7) == ""


def test_a_figure_keeps_only_what_was_measured() -> None:
    assert Figure.of([None, math.nan, math.inf]) is None
    figure = Figure.of([3.0, None, 1.0, 2.0])
    assert figure is not None
    assert (figure.samples, figure.median, figure.min, figure.max, figure.n) == ((3.0, 1.0, 2.0), 2.0, 1.0, 3.0, 3)


def test_nothing_is_divided_by_nothing() -> None:
    assert (ratio(1, 0), ratio(1, None), ratio(None, 1), ratio(3, 2)) == (None, None, None, 1.5)
