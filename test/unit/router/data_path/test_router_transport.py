# SPDX-License-Identifier: Apache-2.0
"""What the dispatcher's thinking becomes: bytes to servers and robots, work for other threads."""

from __future__ import annotations

from types import SimpleNamespace

from builtin_interfaces.msg import Time
import pytest
from support.router.dispatch_rig import ask_of, request_bytes

from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.data_path.replica_transport import RosTransport
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions.client_sessions import ClientSession, ClientSessions
from lerobot_serve.router.sessions.job_queue import JobQueue
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire.header import read_envelope
from lerobot_serve.wire.schema import MsgType, Status, TEXT_LIMIT
from lerobot_serve_interfaces.msg import RoutingDecision

PLACED = Placement('episode-1', 12, 'a', 50)


class Replies:
    """The robots' topics; `open` says whether they are."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.open = True

    def send(self, topic: str, raw: bytes) -> bool:
        if self.open:
            self.sent.append((topic, raw))
        return self.open


class Rig:
    """See the module."""

    def __init__(self) -> None:
        self.to_server: list[bytes] = []
        self.replies, self.drops = Replies(), DropCounters()
        self.told: list[RoutingDecision] = []
        self.warned: list[str] = []
        self.wiring = RosTransport(
            {'/a': SimpleNamespace(send=self.to_server.append)},
            self.replies,
            self.drops,
            publish=self.told.append,
            stamp=lambda: Time(sec=7),
            warn=self.warned.append,
        )
        self.wiring.policy_of = {'a': 'act@a'}.__getitem__
        self.robots = ClientSessions(grace_ns=0, idle_ns=0)
        self.robot = ClientSession(ask_of(), {'a': ('/a',)}, 0)
        self.robots.add(self.robot)

    def flight(self, seq: int = 5) -> InFlightRequest:
        raw = request_bytes('robot', seq, 'episode-1', number=3)
        return InFlightRequest(
            self.robot, read_envelope(raw).header, 'episode-1', raw, 0, slot='a'
        )

    def chunk(self) -> wire_chunk.Chunk:
        ((topic, raw),) = self.replies.sent
        assert topic == '/robot/chunk'
        return wire_chunk.decode(raw)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_requests_and_answers_go_on_as_they_are(rig):
    rig.wiring.send('/a', b'request')
    rig.wiring.reply(rig.robot, b'answer')
    assert (rig.to_server, rig.replies.sent) == ([b'request'], [('/robot/chunk', b'answer')])
    rig.replies.open = False
    rig.wiring.reply(rig.robot, b'too late')
    assert rig.drops.counts() == {'no_client': 1}


def test_a_failure_echoes_the_header_of_its_request(rig):
    flight = rig.flight()
    rig.wiring.fail(flight, Status.NO_SESSION, 'x' * 5000)
    chunk = rig.chunk()
    asked, told = flight.header, chunk.header
    for field in ('seq', 'client_mono_ns', 'session_epoch', 'episode', 'schema_version'):
        assert getattr(told, field) == getattr(asked, field), field
    assert (told.msg_type, told.flags) == (MsgType.CHUNK, 0)
    assert (chunk.client_id, chunk.episode_id, chunk.slot) == ('robot', 'episode-1', 'a')
    assert (chunk.status, chunk.status_text) == (Status.NO_SESSION, 'x' * TEXT_LIMIT)
    assert not chunk.robot.size


@pytest.mark.parametrize('text', ['ü' * TEXT_LIMIT, 'a\0b', '\udcff'])
def test_a_text_that_does_not_fit_is_no_end(rig, text):
    rig.wiring.fail(rig.flight(), Status.NO_SESSION, text)
    assert rig.replies.sent or rig.drops.counts() == {'unencodable': 1}


def test_a_router_that_goes_away_tells_its_robots_and_nobody_else(rig):
    rig.wiring.refuse(request_bytes('robot', 9, 'e'), rig.robots, 77)
    chunk = rig.chunk()
    assert (chunk.header.seq, chunk.status, chunk.episode_id) == (9, Status.DRAINING, 'e')
    assert 'open a session with another server' in chunk.status_text
    assert rig.robot.heard_ns == 77
    rig.wiring.refuse(request_bytes('robot', 9, 'e', epoch=2), rig.robots, 78)
    rig.wiring.refuse(request_bytes('stranger', 9, 'e'), rig.robots, 78)
    rig.wiring.refuse(b'\x00\x01\x00\x00', rig.robots, 78)
    assert len(rig.replies.sent) == 1
    assert rig.drops.counts() == {'draining': 1, 'no_session': 2, 'truncated': 1}


def test_a_decision_names_policy_and_replica(rig):
    rig.wiring.on_placed(rig.robot, rig.flight(), PLACED)
    (told,) = rig.told
    assert (told.slot, told.policy, told.server) == ('a', 'act@a', '/a')
    assert (told.client_id, told.episode_id, told.stamp.sec) == ('robot', 'episode-1', 7)
    assert not rig.warned
    rig.robot.places = {}
    rig.wiring.on_placed(rig.robot, rig.flight(), PLACED)
    assert rig.told[-1].server == ''


def test_without_an_episode_it_is_said_once_and_counted_each_time(rig):
    degraded = Placement('robot:1:5', 12, 'a', 50, missing_episode_id=True)
    for _ in range(3):
        rig.wiring.on_placed(rig.robot, rig.flight(), degraded)
    assert rig.drops.counts() == {'no_episode_id': 3}
    (text,) = rig.warned
    assert 'set episode_id' in text


def test_a_lost_session_becomes_work_of_the_control_thread(rig):
    reopened = []
    rig.wiring.reopen_job = lambda *what: reopened.append(what)
    rig.wiring.reopen_session(rig.robot, '/a')
    assert not reopened
    rig.wiring.jobs.end()
    rig.wiring.jobs.run()
    assert reopened == [(rig.robot, '/a')]


def test_what_is_asked_and_served_goes_to_the_shadow_if_there_is_one(rig):
    flight = rig.flight()
    rig.wiring.on_requested(rig.robot, flight.raw, flight.header, None)
    seen = []
    rig.wiring.shadow = SimpleNamespace(
        on_request=lambda *what: seen.append(('asked', *what)),
        on_reply_sent=lambda *what: seen.append(('served', *what)),
    )
    rig.wiring.on_requested(rig.robot, flight.raw, flight.header, None)
    rig.wiring.on_replied(flight, '/a', b'chunk', 'answer')
    assert [what[0] for what in seen] == ['asked', 'served']
    assert seen[1][1:] == (flight, '/a', b'chunk', 'answer')


def test_it_wakes_the_alarm(rig):
    assert not rig.wiring.alarm.is_set()
    rig.wiring.wake()
    assert rig.wiring.alarm.is_set()


# jobs


def test_jobs_are_done_in_order_and_none_after_the_end():
    jobs, done = JobQueue(), []
    for number in range(3):
        assert jobs.put(lambda number=number: done.append(number))
    jobs.end()
    assert not jobs.put(lambda: done.append('late'))
    assert not jobs.put_and_wait(lambda: done.append('late'), 10.0)
    jobs.run()
    assert done == [0, 1, 2]
    jobs.end()


def test_waiting_for_a_job_has_a_bound():
    assert not JobQueue().put_and_wait(int, 0.0)
