# SPDX-License-Identifier: Apache-2.0
"""
What the router computes without ROS: dispatching a request, placing an episode.
Parts, each in one file: dispatch, placement. Run by `make bench BENCH=router_cpu`; main thread.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results.parts import measure_parts
from benchmarks.results.report import Case

ABOUT = 'one request through the dispatcher of the router, and one episode placed'
# each case has those of its part
PARAMETERS: dict[str, object] = {}
PARTS = ('dispatch', 'placement')


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases of all parts. Raises UserError."""
    return measure_parts(__name__, PARTS, rounds, folder)
