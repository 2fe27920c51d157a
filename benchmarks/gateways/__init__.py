# SPDX-License-Identifier: Apache-2.0
"""
Clients of other projects through a gateway: against their own servers, and against a session of
this package without a gateway.
Parts, each in one file: one_client, two_robots, mixed. Run by
`make bench BENCH=gateways`; main thread.
"""

from __future__ import annotations

ABOUT = 'clients of other projects through a gateway, against their servers and against none'
PARTS = ('one_client', 'two_robots', 'mixed')
