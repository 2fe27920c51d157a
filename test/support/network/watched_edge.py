# SPDX-License-Identifier: Apache-2.0
"""An edge controller on another machine, asked through support.network.edge_watch."""

from __future__ import annotations

from collections.abc import Callable
import json
import subprocess
from typing import Any

from lerobot_serve_interfaces.msg import EdgeState
from support.network.machines import line_of
from support.waiting import wait_until

LIMIT_S = 60.0
# between two attempts of the simulated robot there is less
FALLBACK_S = 2.0
FALLBACK_STATES = (EdgeState.STALLED, EdgeState.RECONNECTING)


class WatchedEdge:
    """Asks a process on the machine of the robot."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process

    def ask(self) -> dict[str, Any]:
        print('state', file=self._process.stdin, flush=True)
        return json.loads(line_of(self._process))

    def wait(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Return the first state for which this holds."""
        last: dict[str, Any] = {}

        def found() -> bool:
            last.update(self.ask())
            return holds(last)

        try:
            wait_until(found, what, LIMIT_S)
        finally:
            # shown below a failure
            print(f'--- {what}: {last}')
        return last

    def wait_until_driven(self, count: int = 60) -> dict[str, Any]:
        """Wait for so many further actions of a policy, while the session is open."""
        begin = self.ask()['played']
        return self.wait(
            lambda now: now['played'] > begin + count and now['state'] == EdgeState.STREAMING,
            f'{count} further actions of the policy',
        )

    def wait_until_fallen_back(self) -> dict[str, Any]:
        """Wait until the robot says that it is cut off, and no policy has moved it for long."""
        return self.wait(
            lambda now: (now['state'] in FALLBACK_STATES and now['without_policy_s'] > FALLBACK_S),
            'a fallback',
        )
