# SPDX-License-Identifier: Apache-2.0
"""
What a router adds: to a round trip, and to opening and closing sessions.
Parts, each in one file: trips, sessions. Run by `make bench BENCH=router_overhead`; main thread.
"""

from __future__ import annotations

ABOUT = 'what a router adds to a round trip, and to opening and closing sessions'
PARTS = ('trips', 'sessions')
