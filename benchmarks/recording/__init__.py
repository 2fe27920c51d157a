# SPDX-License-Identifier: Apache-2.0
"""Recordings of robots; parts, each in one file. Run by `make bench BENCH=recording`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.results.parts import measure_parts
from benchmarks.results.report import Case

ABOUT = 'what a recorder costs a robot and holds in memory, what a kill leaves, and conversion'
PARTS = ('recorder', 'kills', 'edge_kills', 'converter')
PARAMETERS: dict[str, object] = {}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases of all parts. Main thread. Raises UserError."""
    return measure_parts(__name__, PARTS, rounds, folder)
