"""
The process of a robot: asks a policy server at the other end of a link whenever it is told to.

    python -m lerobot_serve.bench.link.robot SOCKET

Answers the order `trip` with its parts. Main thread.
"""

from __future__ import annotations

import contextlib
import sys

from lerobot_serve.bench.client import open_when_ready, PolicyClient
from lerobot_serve.bench.link.ways import ANSWER_S, WAYS
from lerobot_serve.bench.peers.trips import attend, frames, Size
from lerobot_serve.bench.real_path import RealPath
from lerobot_serve.edge.fit import fit
from lerobot_serve.ros.runtime import Runtime
from lerobot_serve.start import UserError
from lerobot_serve.wire.content import Image
from lerobot_serve.wire.session import Refused


class WayThere(RealPath):
    """A session in which pictures of one size are sent in one way."""

    def __init__(self, client: PolicyClient, name: str, size: Size) -> None:
        """Open the session once the server is ready. Raises UserError and Refused."""
        pictures = {
            f'observation.images.{camera}': frame for camera, frame in frames(size).items()
        }
        self._way = WAYS[name]
        super().__init__(client, pictures, self._way.codec, f'{name} {size}')
        open_when_ready(client.sessions, self._ask)
        client.wait_until_wired()

    def _encoded(self) -> tuple[Image, ...]:
        way = self._way
        fitted = {name: fit(frame, way.height, way.width) for name, frame in self._frames.items()}
        return self._pool.encode_all(fitted, way.codec, way.quality)


class Robot:
    """A client with a session for each way and size. Main thread."""

    def __init__(self, client: PolicyClient) -> None:
        self._client = client
        self._paths: dict[tuple[str, str], WayThere] = {}

    def trip(self, name: str, size: str) -> dict[str, float] | None:
        """Make a trip; None when it was lost. Raises UserError and Refused."""
        path = self._paths.get((name, size))
        if path is None:
            path = self._paths[name, size] = WayThere(self._client, name, Size.parse(size))
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
    runtime = Runtime([])
    try:
        client = PolicyClient(runtime, answer_s=ANSWER_S, lifespan_s=ANSWER_S)
        runtime.add(client)
        runtime.spin_in_background()
        with contextlib.suppress(KeyboardInterrupt):
            attend(sys.argv[1], {}, {'trip': Robot(client).trip})
    except (UserError, Refused) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    finally:
        runtime.close()
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
