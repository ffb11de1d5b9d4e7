"""Window picture: each overflow conversation as a bar against the window: what was read, what was lost."""

from collections.abc import Callable, Mapping, Sequence

from llmlab.cells import Cell, find_cell
from llmlab.figures import format_count, format_percent
from llmlab.report.experiments import remembered, row_name
from llmlab.report.facts import Mark
from llmlab.report.plot import Axis, Point, Series, bar_plot, round_ticks
from llmlab.report.rows import Row
from llmlab.report.side import Side

PARTS = {
    "read": "read by the model",
    "sent": "sent; the server does not say what was read",
    "lost": "lost, cut by the server",
    "dropped": "left out by the budget",
    "refused": "refused by the server",
}
Bars = Sequence[tuple[Row, Cell, Mapping[str, float]]]


def window_bars(rows: Sequence[Row], index: int) -> Bars:
    """The parts of each conversation of one run, in tokens; those that were sent or lost are our estimate."""
    there = [(row, cell) for row in rows if (cell := row.cells[index])]
    cells = [cell for _, cell in there]
    found = [(row, cell, _parts(cell, find_cell(cells, "overflow", "no_budget", cell.size))) for row, cell in there]
    return [bar for bar in found if bar[2]]


def window_panel(side: Side, bars: Bars, *, alone: bool) -> str | None:
    """The conversations of one run, in tokens where it stands `alone`, else in parts of its window."""
    if not bars:
        return None
    window = next((cell.num_ctx_loaded for _, cell, _ in bars if cell.num_ctx_loaded), side.window)
    unit = window if window and not alone else 1
    series = [
        Series(
            points=[_point(i, bar, name, unit) for i, bar in enumerate(bars) if name in bar[2]],
            classes=name,
        )
        for name in PARTS
    ]
    most = max(sum(parts.values()) for _, _, parts in bars)
    axis = _axis(max(most, window or 0), window, unit)
    names = [_name(row, cell) for row, cell, _ in bars]
    title = None if alone else f"{side.label}, window of {format_count(window)} tokens"
    tips = "; ".join(p.tip for s in series for p in s.points)
    described = f"{side.label}: conversations against a window of {format_count(window)} tokens. {tips}"
    return bar_plot([s for s in series if s.points], names, axis, described, title=title, stacked=True)


def _parts(cell: Cell, plain: Cell | None) -> dict[str, float]:
    """Read, lost, dropped, … of one conversation; `plain` is the same one without a budget."""
    sent, read = cell.median("prompt_tokens_estimate"), cell.median("prompt_tokens")
    whole = plain.median("prompt_tokens_estimate") if plain else None
    parts: dict[str, float | None] = {}
    if not cell.n:
        parts["refused"] = (sent or whole) if cell.refused else None
    elif read is None:
        parts["sent"] = sent
    else:
        parts["read"] = read
        if cell.cut in ("suspected", "proved") and sent:
            parts["lost"] = sent - read
    if cell.variant in ("budget", "budget_pin") and cell.n and whole and sent:
        parts["dropped"] = whole - sent
    return {name: tokens for name, tokens in parts.items() if tokens and tokens > 0}


def _point(place: int, bar: tuple[Row, Cell, Mapping[str, float]], name: str, unit: float) -> Point:
    row, _, parts = bar
    last = list(PARTS)[max(list(PARTS).index(part) for part in parts)]
    about = "" if name == "read" else "about "
    mark = f" – {row.verdict}" if row.mark is not Mark.ok else ""
    return Point(
        x=place,
        y=parts[name] / unit,
        tip=f"{row_name(row)}: {about}{format_count(parts[name])} tokens {PARTS[name]}{mark}",
        label=_tokens(parts) if name == last else "",
    )


def _tokens(parts: Mapping[str, float]) -> str:
    """`2,048 of about 4,950`."""
    whole = sum(parts.values())
    if set(parts) == {"read"}:
        return format_count(whole)
    return (
        f"{format_count(parts['read'])} of about {format_count(whole)}"
        if "read" in parts
        else f"about {format_count(whole)}"
    )


def _name(row: Row, cell: Cell) -> str:
    """`12 turns, no budget – remembered? 0 of 3: cut by the server`."""
    size, comma, words = row_name(row).partition(",")
    turns = f"{size} turn{'' if size == '1' else 's'}{comma}{words}" if cell.size is not None else row_name(row)
    return f"{turns} – remembered? {remembered(cell)}" if cell.asked else turns


def _axis(most: float, window: int | None, unit: float) -> Axis:
    ticks = [tick / unit for tick in round_ticks(most)] if unit == 1 else round_ticks(most / unit, 5)
    strong = window / unit if window else None
    if strong is not None:
        ticks = sorted({strong, *(t for t in ticks if abs(t - strong) > 0.09 * max(ticks[-1], strong))})
    show = _tokens_or_window(window) if unit == 1 else _share
    title = "tokens" if unit == 1 else "part of the window"
    return Axis(title=title, ticks=ticks, show=show, end=most / unit * 1.35, strong=strong)


def _share(part: float) -> str:
    return "window" if part == 1 else format_percent(part)


def _tokens_or_window(window: int | None) -> Callable[[float], str]:
    return lambda tokens: f"window {format_count(tokens)}" if tokens == window else format_count(tokens)
