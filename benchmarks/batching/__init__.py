# SPDX-License-Identifier: Apache-2.0
"""
Single requests against batches: a small ACT on the CPU, large policies on a GPU.
Parts, each in one file: cpu, gpu, embeddings. Run by `make bench BENCH=batching`; main thread.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.results.parts import measure_parts
from benchmarks.results.report import Case

ABOUT = 'chunks a second one by one and in batches, on a CPU and, where there is one, on a GPU'
# each case has those of its part
PARAMETERS: dict[str, object] = {}
PARTS = ('cpu', 'gpu', 'embeddings')


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the cases of all parts. Raises UserError."""
    return measure_parts(__name__, PARTS, rounds, folder)
