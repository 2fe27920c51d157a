# SPDX-License-Identifier: Apache-2.0
"""A robot without a body: opens a session, sends observations, takes chunks."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
import queue
import time
import zlib

from msgspec import structs
import numpy as np
from rclpy.node import Node

from benchmarks.harness.client import RETRYABLE_REFUSALS
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.contract.schema import Flag, MsgType
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.links.fake import FakeReplies
from lerobot_serve.links.link import LinkCallbacks
from lerobot_serve.links.ros.link import RosLink
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.links.zenoh import zenoh_client
from lerobot_serve.local.path import LocalPath
from lerobot_serve.ros import qos
from lerobot_serve.zenoh.keys import Role
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve_interfaces.msg import ActionChunk
from support.contract.session_request import session_request
from support.replacing import replace

# of a request, and of the same one again
ANSWER_LIMITS_S = 10.0, 20.0
JOINTS = tuple(f'joint_{i}.pos' for i in range(6))


class ExecutorReplies(FakeReplies):
    """Replies that the executor delivers; their subscription ends with the node."""

    def __init__(self, node: Node, topic: str) -> None:
        super().__init__(topic)
        self._node = node

    def listen(self, callbacks: LinkCallbacks) -> None:
        self._subscription = self._node.create_subscription(
            ActionChunk, self._topic, callbacks.on_chunk, qos.ACTION_CHUNK, raw=True
        )

    def are_connected(self) -> bool:
        return self._subscription.get_publisher_count() > 0

    def close(self) -> None:
        self._node.destroy_subscription(self._subscription)


class SmallClient:
    """Used by the test's thread; chunks are deposited by the executor's."""

    def __init__(
        self,
        node: Node,
        server: str,
        name: str = 'tester',
        link: ZenohLink | None = None,
        *,
        uses_local: bool = False,
        **ask: object,
    ) -> None:
        """Over ROS 2 without a `link`; `uses_local`: and on the local path."""
        topic = f'/{name}/action_chunk'
        # a process of its own, as the server sees it
        instance = zlib.crc32(name.encode())
        self.ask = session_request(
            name,
            1,
            topic,
            JOINTS,
            instance=instance,
            cameras=(CameraSpec('observation.images.front'),),
        )
        # cameras also as a server describes them
        cameras = ask.pop('cameras', self.ask.cameras)
        named = tuple(CameraSpec(c.name, c.height, c.width, c.channels) for c in cameras)
        self.ask = structs.replace(self.ask, cameras=named, **ask)
        self.chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        if link:
            self._sessions = zenoh_client(link, server, Role.ROBOT, name)
            self.ask = self._sessions.session_request_for(self.ask)
        else:
            self._link = RosLink(node, server, lifespan_s=3.0)
            self.replies = ExecutorReplies(node, topic)
            self._sessions = ServerClient(self._link, self.replies)
        make_path = partial(LocalPath, lifespan_s=3.0) if uses_local else None
        self._sessions.listen(LinkCallbacks(self.chunks.put), make_path)
        self._seq = 0
        # by round_trip
        self._replied: set[int] = set()

    def open(self, limit_s: float = 60.0):
        """Return the reply; a server that is still loading is waited for. Raises Refused."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                reply = self._sessions.open(self.ask, 5.0)
            except (ServerUnreachable, SessionRefused) as error:
                is_refused = (
                    isinstance(error, SessionRefused) and error.code not in RETRYABLE_REFUSALS
                )
                if is_refused or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                self.wait_for_wiring()
                return reply

    def wait_for_wiring(self, limit_s: float = 20.0) -> None:
        """Wait until requests and answers have somebody at the other end."""
        if not self._sessions.wait_until_matched(limit_s):
            raise TimeoutError('requests or answers found nobody at the other end')

    def observation(
        self, *, episode: int = 0, flags: Flag = Flag.NONE, **changes: object
    ) -> Observation:
        self._seq += 1
        now_ns = time.monotonic_ns()
        header = Header(self._seq, now_ns, self.ask.session_epoch, episode, 1, 1, flags)
        state = np.linspace(-1, 1, 6, dtype=np.float32)[None, :]
        built = Observation(header, self.ask.client_id, 'episode-1', state)
        return replace(built, **changes)

    def send(self, raw: bytes) -> None:
        self._sessions.send(raw)

    def request(self, **changes: object) -> int:
        """Send one observation, wait for nothing; return its seq."""
        observation = self.observation(**changes)
        self.send(wire_observation.encode(observation))
        return observation.header.seq

    def readers(self) -> int:
        """Return how many get its requests."""
        return self._link._requests.get_subscription_count()

    def close(self):
        return self._sessions.close(self.ask, 5.0)

    def reset(self, request):
        return self._sessions.reset(request, 5.0)

    def take(self, limit_s: float = 30.0) -> Chunk:
        """Return the next chunk. Raises queue.Empty."""
        return wire_chunk.decode(self.chunks.get(timeout=limit_s))

    def _take_reply(self, limit_s: float) -> Chunk:
        """Return the next chunk; over Zenoh a full link may bring the one before once more."""
        chunk = self.take(limit_s)
        while chunk.header.seq in self._replied:
            chunk = self.take(limit_s)
        self._replied.add(chunk.header.seq)
        return chunk

    def round_trip(self, **changes: object) -> Chunk:
        """
        Send one observation and return its answer. Asks again as a robot does: best effort, one
        end of a topic may know the other before that one knows it.
        """
        observation = self.observation(**changes)
        assert observation.header.msg_type == MsgType.OBSERVATION
        raw = wire_observation.encode(observation)
        for limit_s in ANSWER_LIMITS_S:
            self.send(raw)
            with suppress(queue.Empty):
                chunk = self._take_reply(limit_s)
                assert chunk.header.seq == observation.header.seq
                return chunk
        raise queue.Empty
