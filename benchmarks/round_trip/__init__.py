# SPDX-License-Identifier: Apache-2.0
"""
One robot asks for a chunk: against its peers, and stage by stage against an echo.
Parts, each in one file: peers, stages. Run by `make bench BENCH=round_trip`; main thread.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results.parts import measure_parts
from benchmarks.results.report import Case

ABOUT = 'round trip of a null policy: against peers and a bare echo, and stage by stage'
# each case has those of its part
PARAMETERS: dict[str, object] = {}
PARTS = ('peers', 'stages')


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases of all parts. Raises UserError."""
    return measure_parts(__name__, PARTS, rounds, folder)
