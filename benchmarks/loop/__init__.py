# SPDX-License-Identifier: Apache-2.0
"""
What the loop from a correction to a better policy costs robots that run meanwhile.
Parts, each in one file: swap_server, swap_edge, new_version, learner_cost. Run by
`make bench BENCH=loop`; main thread.
"""

from __future__ import annotations

ABOUT = 'a policy swapped under load, a new version on its way to robots, a learner beside them'
PARTS = ('swap_server', 'swap_edge', 'new_version', 'learner_cost')
