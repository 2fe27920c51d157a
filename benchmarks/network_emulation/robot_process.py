# SPDX-License-Identifier: Apache-2.0
"""
The process of a robot: asks a policy server at the other end of a link whenever it is told to.

    python -m benchmarks.network_emulation.robot_process ENDPOINT SOCKET

ENDPOINT is that of the server over Zenoh. Answers the order `trip` with its time [ms], from the
main thread.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
import sys

from benchmarks.harness.client import PolicyClient, SERVER
from benchmarks.network_emulation.comparison import ANSWER_S, ENCODINGS
from benchmarks.peers.peer_process import ImageSet, serve_orders
from benchmarks.peers.this_package import Node, open_way, PackageRoundTrip
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.errors import UserError
from lerobot_serve.ros.process.node_runtime import NodeRuntime


class EmulatedRobot:
    """A client with one session for each way and size. Main thread."""

    def __init__(self, stack: contextlib.ExitStack, runtime: NodeRuntime, endpoint: str) -> None:
        self._stack, self._runtime, self._node = stack, runtime, Node(None, endpoint)
        self._trips: dict[tuple[str, str], PackageRoundTrip] = {}

    def trip_ms(self, name: str, size: str) -> float | None:
        """Make a trip; None when it was lost. Raises UserError and Refused."""
        trip = self._trips.get((name, size)) or self._open(name, size)
        took = trip()
        return took.total_ms if took else None

    def _open(self, name: str, size: str) -> PackageRoundTrip:
        client_id, way, client = (
            f'bench_{len(self._trips)}',
            replace(ENCODINGS[name], server=SERVER),
            None,
        )
        if not way.over_zenoh:
            client = PolicyClient(self._runtime, client_id, answer_s=ANSWER_S, lifespan_s=ANSWER_S)
            self._runtime.add(client)
        images = ImageSet.parse(size)
        trip = open_way(self._stack, client_id, way, self._node, images, client, ANSWER_S)
        self._trips[name, size] = trip
        return trip


def main() -> int:
    """Do as the benchmark says, until it hangs up."""
    runtime = NodeRuntime([])
    try:
        with contextlib.closing(runtime), contextlib.ExitStack() as stack:
            runtime.spin_in_background()
            robot = EmulatedRobot(stack, runtime, sys.argv[1])
            with contextlib.suppress(KeyboardInterrupt):
                serve_orders(sys.argv[2], {}, {'trip': robot.trip_ms})
    except (UserError, SessionRefused) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
