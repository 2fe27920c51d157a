# SPDX-License-Identifier: Apache-2.0
"""
What the control loop of an edge costs: lateness, queue and cage, the whole process.
Parts, each in one file: ticks, cage, edge_process. Main thread.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results.parts import measure_parts
from benchmarks.results.report import Case

ABOUT = 'control steps: lateness, one action through queue and cage, CPU time of an edge'
# each case has those of its part
PARAMETERS: dict[str, object] = {}
PARTS = ('ticks', 'cage', 'edge_process')


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases of all parts. Raises UserError."""
    return measure_parts(__name__, PARTS, rounds, folder)
