# SPDX-License-Identifier: Apache-2.0
"""
What our processes said, apart from what Fast DDS says of its ports in shared memory: where several
processes are born at once, one may find a port locked. It takes another then.
"""

from __future__ import annotations

OF_FAST_DDS = 'RTPS_TRANSPORT_SHM'


def ours(log: str) -> list[str]:
    """Return the lines that are not the middleware's."""
    return [line for line in log.splitlines() if OF_FAST_DDS not in line]
