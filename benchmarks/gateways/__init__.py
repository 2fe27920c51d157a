# SPDX-License-Identifier: Apache-2.0
"""
Clients of other projects through a gateway: against their own servers, and against a session of
this package without a gateway.
Parts, each in one file: openpi, http, lerobot, two_robots, mixed. Run by
`make bench BENCH=gateways`; main thread.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results.parts import measure_parts
from benchmarks.results.report import Case

ABOUT = 'clients of other projects through a gateway, against their servers and against none'
# each case has those of its part
PARAMETERS: dict[str, object] = {}
PARTS = ('openpi', 'http', 'lerobot', 'two_robots', 'mixed')


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases of all parts. Raises UserError."""
    return measure_parts(__name__, PARTS, rounds, folder)
