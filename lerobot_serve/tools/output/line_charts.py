# SPDX-License-Identifier: Apache-2.0
"""
Draws line charts over local time as self-contained SVG: no script, font or external file. Reads
the time zone; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
import math

from lerobot_serve.tools.output.text import format_local, local_offset_s

# read on a white and on a dark page
COLOURS = ('#2f81d8', '#d1701c', '#2f9e58', '#b455a0', '#858585', '#a08c00')
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 220, 60, 16, 16, 28
# maximum number of labelled intervals, vertical and horizontal
VALUE_TICKS, TIME_TICKS = 5, 6
ROUND = (1.0, 2.0, 5.0, 10.0)
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
TIMES_S = (
    *(1, 2, 5, 10, 15, 30),
    *(n * MINUTE_S for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR_S for n in (1, 2, 3, 6, 12)),
    *(n * DAY_S for n in (1, 2, 5, 10, 20, 50, 100)),
)
# rows above the plot for the labels of marks, so that close labels do not overlap
ROW_HEIGHT, MOST_ROWS = 13, 8
# of a character of a label, and between two labels
CHARACTER_WIDTH, LABEL_GAP = 6.2, 6.0

Points = Sequence[tuple[float, float]]
Mark = tuple[float, str]


@dataclass(frozen=True, slots=True)
class PlotArea:
    """The plotted ranges of time and value, and the height of the labels above the plot."""

    first_s: float
    last_s: float
    high: float
    head: int = 0

    @property
    def top(self) -> int:
        return TOP + self.head

    @property
    def bottom(self) -> int:
        return HEIGHT - BOTTOM + self.head

    def x(self, time_s: float) -> float:
        span_s = (self.last_s - self.first_s) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * (time_s - self.first_s) / span_s

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * min(value / self.high, 1.0)


def line_chart(
    title: str,
    series: Mapping[str, Points],
    *,
    high: float | None = None,
    marks: Sequence[Mark] = (),
    span_s: tuple[float, float] | None = None,
) -> str:
    """
    Return a figure with one line for each name, and a legend with the day; times are seconds since
    1970 and values 0 or above. `high` is the upper end of the value axis, by default a round
    number. `marks` are times with a label; `span_s` is the plotted period, by default that of the
    lines.
    """
    drawn = {name: points for name, points in series.items() if points}
    if not drawn:
        return f'<figure><figcaption>{escape(title)}: no data</figcaption></figure>'
    points = [point for each in drawn.values() for point in each]
    top = high or round_up(max(value for _, value in points))
    times = [time for time, _ in points]
    period = span_s or (min(times), max(times))
    shown = [mark for mark in sorted(marks) if period[0] <= mark[0] <= period[1]]
    flat = PlotArea(*period, top)
    rows = label_rows([(flat.x(time_s), text) for time_s, text in shown])
    frame = PlotArea(*period, top, head=ROW_HEIGHT * (max(rows, default=-1) + 1))
    parts = [_axes(frame)]
    for number, (name, line) in enumerate(drawn.items()):
        parts.append(_line(frame, name, line, COLOURS[number % len(COLOURS)]))
    placed = [
        (frame.x(time_s), text, row) for (time_s, text), row in zip(shown, rows, strict=True)
    ]
    # all lines below all labels
    parts += [_mark_line(frame, x, row) for x, _, row in placed]
    parts += [_mark_label(x, text, row) for x, text, row in placed]
    return (
        f'<figure><figcaption>{escape(title)}, from '
        f'{format_local(period[0], day=True, to="seconds")}{_legend(drawn)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + frame.head}" role="img" class="chart" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'
    )


def label_rows(labels: Sequence[tuple[float, str]]) -> list[int]:
    """
    Return the row of each label, given in order of their places, so that no two of one row
    overlap; beyond MOST_ROWS the last one is shared.
    """
    ends: list[float] = []
    rows = []
    for x, text in labels:
        begin, end = label_span(x, text)
        row = next((n for n, taken in enumerate(ends) if taken <= begin), len(ends))
        row = min(row, MOST_ROWS - 1)
        ends[row : row + 1] = [max(end, *ends[row : row + 1])] if row < len(ends) else [end]
        rows.append(row)
    return rows


def label_span(x: float, text: str) -> tuple[float, float]:
    """Return where a label of a mark at `x` begins and ends, within the picture."""
    width = CHARACTER_WIDTH * len(text) + LABEL_GAP
    begin = max(LEFT, min(x, WIDTH - width))
    return begin, begin + width


def _legend(names: Mapping[str, Points]) -> str:
    marks = [
        f' <span style="color:{COLOURS[number % len(COLOURS)]}">&#9632; {escape(name)}</span>'
        for number, name in enumerate(names)
    ]
    return ''.join(marks)


def round_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten; 1 for 0."""
    if not (value > 0 and math.isfinite(value)):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * each for each in ROUND if power * each >= value * (1 - 1e-9))


def value_ticks(high: float) -> list[float]:
    """Return round values from 0 up to `high`."""
    step = round_up(high / VALUE_TICKS)
    return [number * step for number in range(int(high / step + 1e-9) + 1)]


def time_ticks(first_s: float, last_s: float) -> list[float]:
    """Return times that are round by local time within a period."""
    span_s = last_s - first_s
    step_s = next((each for each in TIMES_S if span_s <= each * TIME_TICKS), TIMES_S[-1])
    if not math.isfinite(span_s) or span_s > step_s * 10 * TIME_TICKS:
        return [first_s, last_s]
    ahead_s = local_offset_s(first_s)
    begin, end = math.ceil((first_s + ahead_s) / step_s), math.floor((last_s + ahead_s) / step_s)
    return [number * float(step_s) - ahead_s for number in range(begin, end + 1)]


def _axes(frame: PlotArea) -> str:
    parts = []
    for value in value_ticks(frame.high):
        y = frame.y(value)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.6g}</text>'
        )
    ticks = time_ticks(frame.first_s, frame.last_s) or [frame.first_s]
    is_long = frame.last_s - frame.first_s >= DAY_S
    for time_s in ticks:
        x = frame.x(time_s)
        # month to minute; the legend has year and offset
        label = format_local(time_s, day=True)[5:16] if is_long else format_local(time_s)[:8]
        parts.append(
            f'<line x1="{x:.1f}" y1="{frame.top}" x2="{x:.1f}" y2="{frame.bottom}" class="grid"/>'
            f'<text x="{x:.1f}" y="{frame.bottom + 20}" text-anchor="{_anchor(frame, x)}">'
            f'{label}</text>'
        )
    return ''.join(parts)


def _anchor(frame: PlotArea, x: float) -> str:
    """Return the text anchor that keeps a label inside the picture."""
    if x > WIDTH - 60:
        return 'end'
    return 'start' if x < LEFT + 30 else 'middle'


def _line(frame: PlotArea, name: str, points: Points, colour: str) -> str:
    places = [(frame.x(time_s), frame.y(value)) for time_s, value in points]
    path = ' '.join(f'{x:.1f},{y:.1f}' for x, y in places)
    dots = ''.join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in places)
    return (
        f'<g fill="{colour}" stroke="{colour}"><title>{escape(name)}</title>'
        f'<polyline points="{path}" fill="none" stroke-width="1.5"/>{dots}</g>'
    )


def _mark_line(frame: PlotArea, x: float, row: int) -> str:
    """Return a line through the plot up to the row of its label."""
    return (
        f'<line x1="{x:.1f}" y1="{ROW_HEIGHT * (row + 1)}" x2="{x:.1f}" y2="{frame.bottom}" '
        'class="mark"/>'
    )


def _mark_label(x: float, text: str, row: int) -> str:
    return (
        f'<text x="{label_span(x, text)[0]:.1f}" y="{ROW_HEIGHT * (row + 1) - 2}" class="mark">'
        f'{escape(text)}</text>'
    )
