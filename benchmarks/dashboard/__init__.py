# SPDX-License-Identifier: Apache-2.0
"""The dashboard with a large fleet, see cost.py."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results.parts import measure_parts
from benchmarks.results.report import Case

ABOUT = 'what a dashboard costs with 300 robots and 20 viewers, and what robots notice of it'
PARTS = ('cost', 'router')
PARAMETERS: dict[str, object] = {}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases of all parts. Main thread. Raises UserError."""
    return measure_parts(__name__, PARTS, rounds, folder)
