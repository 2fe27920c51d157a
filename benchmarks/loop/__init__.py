# SPDX-License-Identifier: Apache-2.0
"""
What the loop from a correction to a better policy costs robots that run meanwhile.
Parts, each in one file: swap_server, swap_edge, new_version, learner_cost. Run by
`make bench BENCH=loop`; main thread.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results.parts import measure_parts
from benchmarks.results.report import Case

ABOUT = 'a policy swapped under load, a new version on its way to robots, a learner beside them'
# each case has those of its part
PARAMETERS: dict[str, object] = {}
PARTS = ('swap_server', 'swap_edge', 'new_version', 'learner_cost')


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases of all parts. Raises UserError."""
    return measure_parts(__name__, PARTS, rounds, folder)
