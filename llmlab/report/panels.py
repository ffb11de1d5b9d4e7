"""Panels: the single plots of the charts, from the rows of a report."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from llmlab.cells import Cell
from llmlab.figures import format_count, format_ratio, format_value
from llmlab.report.document import Report
from llmlab.report.experiments import row_name
from llmlab.report.plot import Axis, Point, Series, bar_plot, line_plot, round_ticks, thin_ticks
from llmlab.report.rows import Row
from llmlab.report.scale import Scale

COLOURS = 8
Place = Callable[[Row, Cell], float | None]


def run_class(index: int) -> str:
    """The CSS class of a run's colour and dashes."""
    return f"run-{index % COLOURS}"


def prompt_panel(report: Report, name: str) -> str | None:
    """A figure against the prompt tokens that the server counted; None where nothing was measured."""
    scale = Scale(report, "prompt_length", name)
    series = _series(report, scale, lambda row, cell: cell.median("prompt_tokens") or cell.size, _tokens)
    most = max((p.x for s in series for p in s.points), default=0)
    return _lines(series, Axis(title="prompt tokens", ticks=round_ticks(most), show=format_count), scale)


def users_panel(report: Report, name: str) -> str | None:
    """A figure against the number of users; beside the median TTFT of a single run also that of its last user."""
    scale = Scale(report, "users", name)
    series = _series(report, scale, _size, _users)
    if scale.single and name == "ttft_ns":
        worst = scale.points(0, _size, lambda n: f"{_users(n)}, the last one", "ttft_worst_ns")
        silent = [replace(p, label="") for p in worst[:-1]]
        series = [
            Series(points=[*silent, *worst[-1:]], classes=f"{run_class(0)} worst"),
            replace(series[0], below=True),
        ]
    x = Axis(title="users at once", ticks=thin_ticks(p.x for s in series for p in s.points), show=format_count)
    return _lines(series, x, scale)


def staircase_panel(report: Report) -> str | None:
    """TTFT of the first, second, … user to be answered in the largest burst; of several runs ÷ the first step."""
    scale = Scale(report, "users", "ttft_ns")
    series = []
    for i, side in enumerate(report.sides):
        stairs = [c for row in scale.rows if (c := row.cells[i]) and len(c.staircase_ns) > 1]
        if stairs:
            series += _stairs(scale, i, stairs[-1], side.label)
    if not series:
        return None
    most = max(p.x for s in series for p in s.points) - 0.5
    users = [float(n) for n in range(1, round(most) + 1)]
    x = Axis(title="users in the order answered", ticks=thin_ticks(users), show=format_count, end=most + 1)
    y = scale.axis(series)
    title = f"{y.title}, user by user" if scale.single else "Time to first token ÷ first user"
    return line_plot(series, x, replace(y, title=title), _described(title, x.title, series))


def _stairs(scale: Scale, index: int, cell: Cell, label: str) -> list[Series]:
    """The steps as a line, and a dot on each."""
    base = scale.divisor if scale.single else cell.staircase_ns[0] or scale.divisor
    steps, dots = [], []
    for user, wait_ns in enumerate(cell.staircase_ns, start=1):
        compared = "" if scale.single else f", {format_ratio(wait_ns / base)} the first user"
        tip = f"{label}, user {user} of {cell.size}: {format_value('ttft_ns', wait_ns)}{compared}"
        dots.append(Point(x=user, y=wait_ns / base, tip=tip))
        steps += [Point(x=user - 0.5, y=wait_ns / base), Point(x=user + 0.5, y=wait_ns / base)]
    if scale.single:
        for i in (0, -1):
            dots[i] = replace(dots[i], label=format_value("ttft_ns", cell.staircase_ns[i]))
    return [
        Series(points=steps, classes=run_class(index), marker=None),
        Series(points=dots, classes=run_class(index), marker=index, line=False),
    ]


def repeat_panel(report: Report) -> str | None:
    """TTFT of a prompt the first time, again and changed, as bars."""
    scale = Scale(report, "repeat_prompt", "ttft_ns")
    names = [row_name(row) for row in scale.rows]
    series = [
        Series(
            points=scale.points(i, lambda row, cell: scale.rows.index(row), lambda place: names[int(place)]),
            classes=run_class(i),
        )
        for i in range(len(report.sides))
    ]
    if not any(s.points for s in series):
        return None
    axis = scale.axis(series, room=1.16)
    return bar_plot(series, names, axis, _described(axis.title, "prompt", series))


def _series(report: Report, scale: Scale, x: Place, where: Callable[[float], str]) -> list[Series]:
    found = [scale.points(i, x, where) for i in range(len(report.sides))]
    if not scale.single:
        found = [[replace(p, label="") for p in points] for points in found]
    return [Series(points=points, classes=run_class(i), marker=i) for i, points in enumerate(found)]


def _lines(series: Sequence[Series], x: Axis, scale: Scale) -> str | None:
    if not any(s.points for s in series):
        return None
    y = scale.axis(series)
    return line_plot(series, x, y, _described(y.title, x.title, series))


def _described(what: str, against: str, series: Sequence[Series]) -> str:
    """The picture in words, for those who cannot see it."""
    values = "; ".join(p.tip for s in series for p in s.points if p.tip)
    return f"{what} against {against}. {values}"


def _size(row: Row, cell: Cell) -> float | None:
    return cell.size


def _tokens(n: float) -> str:
    return f"{format_count(n)} tokens"


def _users(n: float) -> str:
    return "1 user" if n == 1 else f"{format_count(n)} users"
