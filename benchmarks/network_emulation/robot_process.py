# SPDX-License-Identifier: Apache-2.0
"""
The process of a robot: asks a policy server at the other end of a link whenever it is told to.

    python -m benchmarks.network_emulation.robot_process ENDPOINT SOCKET

ENDPOINT is that of the server over Zenoh. Answers the order `trip` with its parts. Main thread.
"""

from __future__ import annotations

import contextlib
import sys

from benchmarks.harness.client import PolicyClient, SERVER, ZenohPolicyClient
from benchmarks.harness.request_session import RequestSession
from benchmarks.network_emulation.encodings import ANSWER_S, ENCODINGS
from benchmarks.peers.peer_process import ImageSet, policy_frames, serve_orders
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.errors import UserError
from lerobot_serve.ros.process.node_runtime import NodeRuntime


class EmulatedRobot:
    """A client with one session for each way and size. Main thread."""

    def __init__(self, runtime: NodeRuntime, endpoint: str) -> None:
        self._runtime, self._endpoint = runtime, endpoint
        self._paths: dict[tuple[str, str], RequestSession] = {}
        self._clients: dict[tuple[str, str], PolicyClient | ZenohPolicyClient] = {}

    def trip(self, name: str, size: str) -> dict[str, float] | None:
        """Make a trip; None when it was lost. Raises UserError and Refused."""
        if (name, size) not in self._paths:
            self._open(name, size)
        path, client = self._paths[name, size], self._clients[name, size]
        client.chunks.clear()
        trip = path.trip()
        if trip is None:
            return None
        return {
            'total_ms': trip.total,
            'image_encode_ms': trip.image_encode,
            'request_bytes': path.request_bytes,
        }

    def _open(self, name: str, size: str) -> None:
        client_id, way = f'bench_{len(self._paths)}', ENCODINGS[name]
        if way.over_zenoh:
            client = ZenohPolicyClient(self._endpoint, client_id, SERVER, answer_s=ANSWER_S)
        else:
            client = PolicyClient(self._runtime, client_id, answer_s=ANSWER_S, lifespan_s=ANSWER_S)
            self._runtime.add(client)
        self._clients[name, size] = client
        named, fitted = policy_frames(ImageSet.parse(size)), (way.height, way.width)
        path = RequestSession(
            client, named, way.codec, client_id, quality=way.quality, fitted=fitted
        )
        path.open()
        client.wait_until_matched()
        self._paths[name, size] = path

    def close(self) -> None:
        for client in self._clients.values():
            if isinstance(client, ZenohPolicyClient):
                client.close()


def main() -> int:
    """Do as the benchmark says, until it hangs up."""
    runtime = NodeRuntime([])
    robot = EmulatedRobot(runtime, sys.argv[1])
    try:
        runtime.spin_in_background()
        with contextlib.suppress(KeyboardInterrupt):
            serve_orders(sys.argv[2], {}, {'trip': robot.trip})
    except (UserError, SessionRefused) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    finally:
        robot.close()
        runtime.close()
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
