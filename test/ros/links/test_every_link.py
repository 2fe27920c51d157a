# SPDX-License-Identifier: Apache-2.0
"""The contract of a link, over each one: a client, and a policy server in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import queue
import signal
import threading
from types import SimpleNamespace

from msgspec.structs import replace
import numpy as np
import pytest
from support.contract.session_request import session_request
from support.nodes.server_rig import ServerRig
from support.nodes.small_client import JOINTS
from support.nodes.zenoh_links import every_link
from support.processes.stopped_process import halt

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import OpenSessionRequest, ResetEpisodeRequest
from lerobot_serve.contract.schema import MsgType, Status
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.links.link import LinkCallbacks, Presence
from lerobot_serve.links.ros.node_links import NodeLinks
from lerobot_serve.zenoh.keys import Role

pytestmark = every_link
LIMIT_S = 20.0
CAMERA, SIDE = 'observation.images.front', 128
LOST = {Presence.EXPIRED, Presence.GONE}


class Robot:
    """A client of the server of a rig, and what arrives. The test's thread."""

    def __init__(self, rig: ServerRig, name: str = 'robot') -> None:
        over_zenoh = getattr(rig.fleet, 'links', None)
        self.name, self._stop = name, threading.Event()
        self.chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.no_session: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.presences: list[Presence] = []
        self._links = NodeLinks(
            rig.node,
            Role.ROBOT,
            name,
            SimpleNamespace(local_path=getattr(rig.fleet, 'uses_local', False), local_group=''),
            lifespan_s=LIMIT_S,
            stop=self._stop,
            zenoh=over_zenoh.link(rig.name) if over_zenoh else None,
        )
        self.client = self._links.add(
            rig.name, f'/{name}/action_chunk', over_zenoh=bool(over_zenoh)
        )
        self._links.listen(
            lambda _: LinkCallbacks(self.chunks.put, self.no_session.put, self.presences.append)
        )
        self._thread = threading.Thread(target=self._links.run, args=(self._stop,))
        self._thread.start()
        self._ask = session_request(name, 0, '', JOINTS, instance=1, cameras=())
        self.images: tuple[Image, ...] = ()
        self.epoch = self._seq = 0

    def open(self) -> None:
        """Open the next session."""
        self.epoch += 1
        self.client.open(self.ask, LIMIT_S)
        assert self.client.wait_until_matched(LIMIT_S)

    @property
    def ask(self) -> OpenSessionRequest:
        ask = replace(self._ask, session_epoch=self.epoch)
        return self.client.session_request_for(ask)

    def send(self) -> int:
        """Send a request; return its number."""
        self._seq += 1
        header = Header(self._seq, 0, self.epoch, 0, 1, int(MsgType.OBSERVATION))
        state = np.zeros((1, len(JOINTS)), np.float32)
        observation = Observation(header, self.name, 'episode-1', state, images=self.images)
        self.client.send(wire_observation.encode_parts(observation))
        return self._seq

    def take(self, limit_s: float = LIMIT_S) -> Chunk:
        return wire_chunk.decode(self.chunks.get(timeout=limit_s))

    def round_trip(self) -> Chunk:
        """Ask until an answer comes: the first requests may find half a connection."""
        while True:
            sent = self.send()
            try:
                chunk = self.take(2.0)
            except queue.Empty:
                continue
            assert (chunk.header.seq, chunk.status) == (sent, Status.OK)
            return chunk

    def close(self) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        self._links.wake()
        self._thread.join()
        self._links.close()


@pytest.fixture
def connect(rig) -> Iterator[Callable[[str], Robot]]:
    """Gives robots whose sessions are open at a server that answers each request."""
    rig.process = rig.start(policy_kind='steered')
    with contextlib.ExitStack() as stack:

        def made(name: str) -> Robot:
            robot = Robot(rig, name)
            stack.callback(robot.close)
            rig.wait(robot.client.is_available, 'the server is found', LIMIT_S)
            robot.open()
            return robot

        yield made


@pytest.fixture
def robot(connect) -> Robot:
    made = connect('robot')
    assert made.round_trip().client_id == 'robot'
    return made


def test_replies_keep_the_order_of_requests_and_none_comes_twice(robot):
    sent, seen = [], []
    for _ in range(50):
        sent.append(robot.send())
        seen.append(robot.take().header.seq)
    assert seen == sent
    with pytest.raises(queue.Empty):
        robot.take(0.2)


def test_of_a_flood_the_newest_is_answered_and_what_arrives_is_in_order(robot):
    """Requests are larger than a datagram; a full link may lose some of them, and none twice."""
    robot.images = (Image(CAMERA, SIDE, SIDE, bytes(3 * SIDE**2)),)
    newest = [robot.send() for _ in range(300)][-1]
    chunks = [robot.take()]
    while chunks[-1].header.seq < newest:
        chunks.append(robot.take())
    seen = [chunk.header.seq for chunk in chunks]
    assert seen == sorted(set(seen))
    assert len(seen) + chunks[-1].superseded <= 300


def test_a_request_without_a_session_is_refused(robot):
    robot.epoch += 1
    robot.send()
    chunk = wire_chunk.decode(robot.no_session.get(timeout=LIMIT_S))
    assert (chunk.header.seq, chunk.status) == (2, Status.NO_SESSION)
    # a server that has just been started may not know the client as early as it is known
    assert robot.chunks.empty()


def test_calls_without_waiting_are_answered_or_refused(robot):
    refusals, replies = queue.SimpleQueue(), queue.SimpleQueue()
    stranger = ResetEpisodeRequest('robot', 77, 1)
    robot.client.announce(stranger, refusals.put)
    assert "'robot' has no session of epoch 77" in refusals.get(timeout=LIMIT_S)
    robot.client.probe(lambda: replies.put(True))
    assert replies.get(timeout=LIMIT_S)
    assert robot.client.reset(ResetEpisodeRequest('robot', 1, 1, 'two'), LIMIT_S).acknowledged
    assert robot.client.status(LIMIT_S).status.active_sessions == 1


def test_a_robot_gets_no_reply_of_another_one_that_comes_and_goes(rig, connect, robot):
    other = connect('other')
    other.round_trip()
    assert robot.round_trip().client_id == 'robot'
    assert other.chunks.empty()
    assert other.client.close(other.ask, LIMIT_S).closed
    other.close()
    assert rig.status().active_sessions == 1
    robot.round_trip()


def test_a_server_that_was_killed_is_lost_and_its_successor_found(rig, robot):
    rig.process.kill()
    rig.wait(lambda: LOST & set(robot.presences), 'it is lost', LIMIT_S)
    with pytest.raises(ServerUnreachable, match='/policy_server'):
        robot.client.reset(ResetEpisodeRequest('robot', 1, 1), 0.5)
    robot.presences.clear()
    rig.process.wait(LIMIT_S)
    rig.start(policy_kind='steered')
    rig.wait(robot.client.is_available, 'its successor is found', LIMIT_S)
    robot.open()
    robot.round_trip()
    assert LOST.isdisjoint(robot.presences)


def test_a_server_that_hangs_ends_no_call_late_and_is_lost_until_it_goes_on(rig, robot, link):
    """Half open: its sockets take bytes."""
    halt(rig.process)
    try:
        with pytest.raises(ServerUnreachable, match=r'no re(ply|sponse) within 0\.5 s'):
            robot.client.status(0.5)
        # on the local path the reply topic has shown no sign of life
        if link != 'local':
            rig.wait(lambda: LOST & set(robot.presences), 'its lease runs out', LIMIT_S)
    finally:
        rig.process.send_signal(signal.SIGCONT)
    if link != 'local':
        rig.wait(lambda: robot.presences[-1] is Presence.THERE, 'it is back', LIMIT_S)
    robot.open()
    robot.round_trip()


def test_a_server_that_ends_says_goodbye(rig, robot, link):
    rig.process.terminate()
    # Zenoh reports no reason
    goodbye = Presence.GONE if link == 'zenoh' else Presence.CLOSED
    rig.wait(lambda: robot.presences[-1:] == [goodbye], 'it says so', LIMIT_S)
