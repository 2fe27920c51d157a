# SPDX-License-Identifier: Apache-2.0
"""Recordings of robots; parts, each in one file. Run by `make bench BENCH=recording`."""

from __future__ import annotations

ABOUT = 'what a recorder costs a robot and holds in memory, what a kill leaves, and conversion'
PARTS = ('recorder', 'kills', 'edge_kills', 'converter')
