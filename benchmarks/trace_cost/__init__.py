# SPDX-License-Identifier: Apache-2.0
"""
What a trace costs: to write it, on a policy server, and to read it.
Parts, each in one file: records, server, tools. Run by `make bench BENCH=trace_cost`; main thread.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results.parts import measure_parts
from benchmarks.results.report import Case

ABOUT = 'a trace written by a node, on a policy server, and read by stats and audit'
# each case has those of its part
PARAMETERS: dict[str, object] = {}
PARTS = ('records', 'server', 'tools')


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases of all parts. Raises UserError."""
    return measure_parts(__name__, PARTS, rounds, folder)
