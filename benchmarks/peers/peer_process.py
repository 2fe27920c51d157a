# SPDX-License-Identifier: Apache-2.0
"""
The process of a peer's server or client: what all peers share. Plain; main thread.

The benchmark listens on a socket that is a file, so that it is reached from other network
namespaces too. A client calls there once its server has taken it, says its versions, and answers
each order, all of them one line of JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
from dataclasses import dataclass
from functools import cache
import json
import socket
import sys
import time

import numpy as np

from benchmarks.harness import machine
from benchmarks.harness.camera_images import camera_images
from lerobot_serve.contract.schema import Codec

JPEG_QUALITY = 90
CAMERAS = ('front', 'wrist', 'side')
CHUNK_ROWS, JOINTS = 100, 6
JOINT_NAMES = tuple(f'joint_{number}.pos' for number in range(JOINTS))
CAMERA_PREFIX = 'observation.images.'
# of benchmarks with the null policy
NULL_POLICY = {'state': JOINTS, 'chunk': f'{CHUNK_ROWS}x{JOINTS}', 'policy': 'null'}
READY_S, POLL_S = 120.0, 0.1
LOST = 'lost'
# name -> picture
Frames = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, as its client says it."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ImageSet:
    """So many cameras of one size."""

    cameras: int
    height: int
    width: int

    def __str__(self) -> str:
        return f'{self.cameras}x{self.height}x{self.width}'

    @classmethod
    def parse(cls, text: str) -> ImageSet:
        """Return what `str` has made."""
        return cls(*map(int, text.split('x')))

    @property
    def picture_bytes(self) -> int:
        """How much all pictures are, raw."""
        return self.cameras * self.height * self.width * 3


@dataclass(frozen=True, slots=True)
class Way:
    """
    How this package is asked: the node, how pictures are sent, over which link, ROS 2 or Zenoh,
    and whether on the local path, on which routers ask their server. `height` and `width` are the
    policy's, 0 to leave pictures as large.
    """

    server: str = ''
    codec: Codec = Codec.RAW
    over_zenoh: bool = False
    uses_local: bool = False
    quality: int = JPEG_QUALITY
    height: int = 0
    width: int = 0

    def suits(self, size: ImageSet) -> bool:
        """Return whether it is another way than the others where pictures are of this size."""
        return not self.height or (self.height < size.height and self.width < size.width)


@cache
def frames(size: ImageSet) -> Frames:
    """Return one picture for each camera, by its short name; the same in every process."""
    front, wrist = camera_images(size.height, size.width).values()
    side = np.ascontiguousarray(front[:, ::-1])
    return dict(zip(CAMERAS, (front, wrist, side)[: size.cameras], strict=False))


def policy_frames(size: ImageSet) -> Frames:
    """Return the pictures by the names that a policy has for them."""
    return {CAMERA_PREFIX + name: frame for name, frame in frames(size).items()}


# makes one trip with these pictures: its time [ms], or why there was no usable chunk
Trip = Callable[[Frames], float | str]
# answers an order of the benchmark
Orders = dict[str, Callable[..., object]]


def run(
    packages: Sequence[str],
    serve: Callable[[Address], None],
    roles: dict[str, Callable[[Address], Orders]],
) -> int:
    """
    Be a server or a client, as the command line says, until the benchmark ends it:
    ROLE HOST PORT [SOCKET].
    """
    role, host, port, *rest = sys.argv[1:]
    address = Address(host, int(port))
    with contextlib.suppress(KeyboardInterrupt):
        if role == 'server':
            serve(address)
        else:
            versions = {name: machine.version(name) for name in packages}
            serve_orders(rest[0], versions, roles[role](address))
    return 0


def single_robot(connect: Callable[[Address], Trip]) -> Callable[[Address], Orders]:
    """Return the role of one robot."""

    def orders(address: Address) -> Orders:
        trip = connect(address)
        return {'trip': lambda size: trip(frames(ImageSet.parse(size)))}

    return orders


def serve_orders(door: str, versions: dict[str, str], orders: Orders) -> None:
    """Do as the benchmark says, until it hangs up."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(door)
        with link.makefile('rw') as lines:
            write_line(lines, versions)
            for line in lines:
                order, *arguments = json.loads(line)
                write_line(lines, orders[order](*arguments))


def write_line(lines: object, what: object) -> None:
    print(json.dumps(what), file=lines, flush=True)


def retry_until_connected(connect: Callable[[], object]) -> object:
    """Return what `connect` returns once the server is up. Raises OSError after READY_S."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            return connect()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def wait_until_listening(address: Address) -> None:
    """Return once somebody listens there. Raises OSError after READY_S."""
    retry_until_connected(
        lambda: socket.create_connection((address.host, address.port), READY_S).close()
    )
