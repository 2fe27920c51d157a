# SPDX-License-Identifier: Apache-2.0
"""
What a trace costs: to write it, on a policy server, and to read it.
Parts, each in one file: records, server, tools. Run by `make bench BENCH=trace_cost`; main thread.
"""

from __future__ import annotations

ABOUT = 'a trace written by a node, on a policy server, and read by stats and audit'
PARTS = ('records', 'server', 'tools')
