# SPDX-License-Identifier: Apache-2.0
"""
The process of a robot: asks a policy server at the other end of a link whenever it is told to.

    python -m benchmarks.network_emulation.robot_process SOCKET

Answers the order `trip` with its parts. Main thread.
"""

from __future__ import annotations

import contextlib
import sys

from benchmarks.harness.client import open_when_ready, PolicyClient
from benchmarks.harness.request_session import RequestSession
from benchmarks.network_emulation.encodings import ANSWER_S, ENCODINGS
from benchmarks.peers.peer_process import frames, ImageSet, serve_orders
from lerobot_serve.edge.inputs.downscale import downscale
from lerobot_serve.entry_points import UserError
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.session import SessionRefused


class EncodedRequestSession(RequestSession):
    """A session in which pictures of one size are sent in one way."""

    def __init__(self, client: PolicyClient, name: str, size: ImageSet) -> None:
        """Open the session once the server is ready. Raises UserError and Refused."""
        pictures = {
            f'observation.images.{camera}': frame for camera, frame in frames(size).items()
        }
        self._way = ENCODINGS[name]
        super().__init__(client, pictures, self._way.codec, f'{name} {size}')
        open_when_ready(client.sessions, self._ask)
        client.wait_until_matched()

    def _encoded(self) -> tuple[Image, ...]:
        way = self._way
        fitted = {
            name: downscale(frame, way.height, way.width) for name, frame in self._frames.items()
        }
        return self._pool.encode_all(fitted, way.codec, way.quality)


class EmulatedRobot:
    """A client with a session for each way and size. Main thread."""

    def __init__(self, client: PolicyClient) -> None:
        self._client = client
        self._paths: dict[tuple[str, str], EncodedRequestSession] = {}

    def trip(self, name: str, size: str) -> dict[str, float] | None:
        """Make a trip; None when it was lost. Raises UserError and Refused."""
        path = self._paths.get((name, size))
        if path is None:
            path = self._paths[name, size] = EncodedRequestSession(
                self._client, name, ImageSet.parse(size)
            )
        self._client.chunks.clear()
        trip = path.trip()
        if trip is None:
            return None
        return {
            'total_ms': trip.total,
            'image_encode_ms': trip.image_encode,
            'request_bytes': path.request_bytes,
        }


def main() -> int:
    """Do as the benchmark says, until it hangs up."""
    runtime = NodeRuntime([])
    try:
        client = PolicyClient(runtime, answer_s=ANSWER_S, lifespan_s=ANSWER_S)
        runtime.add(client)
        runtime.spin_in_background()
        with contextlib.suppress(KeyboardInterrupt):
            serve_orders(sys.argv[1], {}, {'trip': EmulatedRobot(client).trip})
    except (UserError, SessionRefused) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    finally:
        runtime.close()
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
