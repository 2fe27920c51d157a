# SPDX-License-Identifier: Apache-2.0
"""
What the router computes without ROS: dispatching a request, placing an episode.
Parts, each in one file: dispatch, placement. Run by `make bench BENCH=router_cpu`; main thread.
"""

from __future__ import annotations

ABOUT = 'one request through the dispatcher of the router, and one episode placed'
PARTS = ('dispatch', 'placement')
