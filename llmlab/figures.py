"""Figures: the samples of one measured value, and how durations, speeds, counts and ratios are printed."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, isfinite, log10
from statistics import median

MISSING = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """The samples of one value in the order they were measured; never empty, every sample finite."""

    samples: tuple[float, ...]
    median: float
    min: float
    max: float

    @property
    def n(self) -> int:
        return len(self.samples)

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Figure | None":
        """The figure of the values that are there; None if there are none."""
        samples = tuple(v for v in values if v is not None and isfinite(v))
        return cls(samples, median(samples), min(samples), max(samples)) if samples else None


def format_value(name: str, value: float | None) -> str:
    """`value` as its name tells: `…_ns` as a duration, `…_per_s` as a speed, anything else as a count."""
    if name.endswith("_ns"):
        return format_seconds(None if value is None else value / 1e9)
    return format_speed(value) if name.endswith("_per_s") else format_count(value)


def format_range(name: str, figure: Figure) -> str:
    """`6.8–7.4`, in the unit that the median is printed in; empty where both ends read the same."""
    low, high = figure.min, figure.max
    if name.endswith("_ns"):
        scale = 1e6 if _in_milliseconds(figure.median / 1e9) else 1e9
        low, high = low / scale, high / scale
    shown = format_count if not name.endswith(("_ns", "_per_s")) else _two_digits
    return f"{shown(low)}–{shown(high)}" if shown(low) != shown(high) else ""


def format_seconds(seconds: float | None) -> str:
    """`194 s`, `7.1 s`, `7 s`, `0.84 s`, and below 0.2 s `180 ms`."""
    if seconds is None or not isfinite(seconds):
        return MISSING
    return f"{_two_digits(seconds * 1e3)} ms" if _in_milliseconds(seconds) else f"{_two_digits(seconds)} s"


def format_speed(tokens_per_s: float | None) -> str:
    """`152 tok/s`, `4.3 tok/s`, `0.95 tok/s`."""
    return MISSING if tokens_per_s is None or not isfinite(tokens_per_s) else f"{_two_digits(tokens_per_s)} tok/s"


def format_count(value: float | None) -> str:
    """`2,745`; a half, as a median of counts can be, keeps its decimal."""
    if value is None or not isfinite(value):
        return MISSING
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:,.1f}"


def format_ratio(ratio: float | None) -> str:
    """`27×`, `1.5×`, `0.74×`."""
    return MISSING if ratio is None or not isfinite(ratio) else f"{_two_digits(ratio)}×"


def format_percent(fraction: float | None, *, sign: bool = False) -> str:
    """`12 %` of 0.12; with `sign`, `+12 %` and `−12 %`."""
    if fraction is None or not isfinite(fraction):
        return MISSING
    value = round(fraction * 100)
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{abs(value)} %" if sign else f"{value} %"


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part` ÷ `whole`; None where one is missing or `whole` is zero."""
    return None if part is None or not whole else part / whole


def _in_milliseconds(seconds: float) -> bool:
    return 0 < seconds < 0.1995


def _two_digits(value: float) -> str:
    """Two significant digits below ten, whole numbers from there on; no decimals that are zero."""
    if value == 0:
        return "0"
    decimals = max(0, 1 - floor(log10(abs(value)))) if abs(value) < 9.95 else 0
    text = f"{value:,.{min(decimals, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
