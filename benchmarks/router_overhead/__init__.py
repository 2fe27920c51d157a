# SPDX-License-Identifier: Apache-2.0
"""
What a router adds: to a round trip, and to opening and closing sessions.
Parts, each in one file: trips, sessions. Run by `make bench BENCH=router_overhead`; main thread.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results.parts import measure_parts
from benchmarks.results.report import Case

ABOUT = 'what a router adds to a round trip, and to opening and closing sessions'
# each case has those of its part
PARAMETERS: dict[str, object] = {}
PARTS = ('trips', 'sessions')


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases of all parts. Raises UserError."""
    return measure_parts(__name__, PARTS, rounds, folder)
