# SPDX-License-Identifier: Apache-2.0
"""A benchmark as one picture: a bar to the median of each series, a line on to its p99. Plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
import math
from typing import Any

WIDTH, NAMES_WIDTH, ROW, CASE_GAP, MARGIN = 860, 290, 17, 12, 26
STYLE = (
    'text{font:12px sans-serif;fill:#24292f}.case{font-weight:bold}.axis{fill:#57606a}'
    'rect{fill:#4c78a8}line{stroke:#24292f}.grid{stroke:#d0d7de}'
)


def draw_chart(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG, empty when no case has a series."""
    drawn = [(case['name'], percentiles_of(case)) for case in cases]
    drawn = [(name, series) for name, series in drawn if series]
    if not drawn:
        return ''
    every = [figure for _, series in drawn for figures in series.values() for figure in figures]
    axis = Axis(min(every), max(every))
    height = MARGIN + sum(CASE_GAP + ROW * (1 + len(series)) for _, series in drawn)
    parts = [axis.grid(height)]
    y = 0
    for name, series in drawn:
        y += CASE_GAP + ROW
        parts.append(f'<text class="case" x="8" y="{y - 4}">{escape(name)}</text>')
        for label, figures in series.items():
            parts.append(draw_row(axis, y, label, *figures))
            y += ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}"><style>{STYLE}</style>'
        f'<rect width="{WIDTH}" height="{height}" style="fill:#ffffff"/>{"".join(parts)}</svg>\n'
    )


def percentiles_of(case: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return p50 and p99 of each series that can stand on a logarithmic axis."""
    return {
        name: (figures['p50'], figures['p99'])
        for name, figures in case['series_ms'].items()
        if figures.get('p50', 0) > 0
    }


def draw_row(axis: Axis, y: int, label: str, p50: float, p99: float) -> str:
    """Return one series: its name, a bar, a line and both figures."""
    left, middle, right = axis.x(axis.low), axis.x(p50), axis.x(p99)
    centre = y + ROW / 2
    return (
        f'<text x="20" y="{y + 12}">{escape(label)}</text>'
        f'<rect x="{left:.1f}" y="{y + 3}" width="{middle - left:.1f}" height="{ROW - 6}"/>'
        f'<line x1="{middle:.1f}" y1="{centre}" x2="{right:.1f}" y2="{centre}"/>'
        f'<text class="axis" x="{right + 5:.1f}" y="{y + 12}">{p50:.3g} / {p99:.3g}</text>'
    )


class Axis:
    """Milliseconds on a logarithmic axis, from one power of ten to another."""

    def __init__(self, low: float, high: float) -> None:
        self.low = 10.0 ** math.floor(math.log10(low))
        self.high = 10.0 ** math.ceil(math.log10(max(high, self.low * 1.001)))

    def x(self, value_ms: float) -> float:
        """Return where a value lies [pixels]."""
        share = math.log10(value_ms / self.low) / math.log10(self.high / self.low)
        # the figures stand behind the bar
        return NAMES_WIDTH + share * (WIDTH - NAMES_WIDTH - 110)

    def grid(self, height: int) -> str:
        """Return a line and a figure for each power of ten."""
        powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
        return ''.join(
            f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - MARGIN + 8}"/>'
            f'<text class="axis" x="{x:.1f}" y="{height - 6}">{10.0**power:g} ms</text>'
            for power in powers
            for x in [self.x(10.0**power)]
        )
