"""Lines over time as SVG, drawn by hand: no script, no font, no file from elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape

COLOURS = ('#1f6fb4', '#d1701c', '#2f8f4e', '#a03a8a', '#6b6b6b', '#b8a000')
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 220, 60, 16, 16, 28
TICKS = 4

Series = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Frame:
    """The part of the plane that is drawn."""

    first_s: float
    last_s: float
    high: float

    def x(self, time_s: float) -> float:
        span_s = (self.last_s - self.first_s) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * (time_s - self.first_s) / span_s

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value / self.high, 1.0)


def chart(
    title: str,
    series: Mapping[str, Series],
    *,
    high: float | None = None,
    marks: Mapping[str, float] | None = None,
) -> str:
    """
    Return a figure with one line for each name, and a legend; times are seconds since 1970 and
    values 0 or above. `high` is the upper end of the values, by default the highest. `marks` are
    times with something to say of each.
    """
    drawn = {name: points for name, points in series.items() if points}
    if not drawn:
        return f'<figure><figcaption>{escape(title)}: no data</figcaption></figure>'
    points = [point for each in drawn.values() for point in each]
    top = high or max(value for _, value in points) or 1.0
    frame = Frame(min(time for time, _ in points), max(time for time, _ in points), top)
    parts = [_axes(frame)]
    for number, (name, line) in enumerate(drawn.items()):
        parts.append(_line(frame, name, line, COLOURS[number % len(COLOURS)]))
    parts += [_mark(frame, text, time_s) for text, time_s in (marks or {}).items()]
    return (
        f'<figure><figcaption>{escape(title)}{_legend(drawn)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'{"".join(parts)}</svg></figure>'
    )


def _legend(names: Mapping[str, Series]) -> str:
    marks = [
        f' <span style="color:{COLOURS[number % len(COLOURS)]}">&#9632; {escape(name)}</span>'
        for number, name in enumerate(names)
    ]
    return ''.join(marks)


def _axes(frame: Frame) -> str:
    parts = []
    for tick in range(TICKS + 1):
        value = frame.high * tick / TICKS
        y = frame.y(value)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    for time_s, anchor in ((frame.first_s, 'start'), (frame.last_s, 'end')):
        parts.append(
            f'<text x="{frame.x(time_s):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">'
            f'{clock(time_s)}</text>'
        )
    return ''.join(parts)


def _line(frame: Frame, name: str, points: Series, colour: str) -> str:
    places = [(frame.x(time_s), frame.y(value)) for time_s, value in points]
    path = ' '.join(f'{x:.1f},{y:.1f}' for x, y in places)
    dots = ''.join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in places)
    return (
        f'<g fill="{colour}" stroke="{colour}"><title>{escape(name)}</title>'
        f'<polyline points="{path}" fill="none" stroke-width="1.5"/>{dots}</g>'
    )


def _mark(frame: Frame, text: str, time_s: float) -> str:
    x = frame.x(min(max(time_s, frame.first_s), frame.last_s))
    return (
        f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" class="mark"/>'
        f'<text x="{x + 4:.1f}" y="{TOP + 10}">{escape(text)}</text>'
    )


def clock(time_s: float) -> str:
    """Return a time of day, UTC."""
    try:
        return f'{datetime.fromtimestamp(time_s, timezone.utc):%Y-%m-%d %H:%M:%S}'
    except (ValueError, OverflowError, OSError):
        return f'{time_s:.0f} s'
