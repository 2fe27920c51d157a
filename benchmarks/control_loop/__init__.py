# SPDX-License-Identifier: Apache-2.0
"""
What the control loop of an edge costs: lateness, queue and cage, the whole process.
Parts, each in one file: ticks, cage, edge_process. Main thread.
"""

from __future__ import annotations

ABOUT = 'control steps: lateness, one action through queue and cage, CPU time of an edge'
PARTS = ('ticks', 'cage', 'edge_process')
