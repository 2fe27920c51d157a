# SPDX-License-Identifier: Apache-2.0
"""What the dispatcher's thinking becomes: bytes to servers and robots, work for other threads."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from builtin_interfaces.msg import Time
import pytest
from support.replacing import replace
from support.router.contexts import make_context
from support.router.dispatch_rig import ask_of, episode_in, request_bytes, ROUTING
from support.router.dispatch_rig import Rig as DispatchRig

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.limits import TEXT_LIMIT
from lerobot_serve.contract.schema import MsgType, Status
from lerobot_serve.router.data_path.dispatch_step import RequestTimer
from lerobot_serve.router.data_path.dispatcher import Dispatcher
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.data_path.replica_transport import ReplicaTransport
from lerobot_serve.router.data_path.request_observer import RequestObserver, RequestObservers
from lerobot_serve.router.data_path.routing_table import RoutingTable
from lerobot_serve.router.monitoring.decision_publisher import DecisionPublisher
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.placement.placement_table import Placement, PlacementTable
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.sessions.job_queue import JobQueue
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
        self.now_ns = 0
        self.to_server: list[bytes] = []
        self.replies, self.drops = Replies(), DropCounters()
        self.told: list[RoutingDecision] = []
        self.warned: list[str] = []
        clients = {'/a': SimpleNamespace(send=self.to_server.append)}
        self.unknown: list[Chunk] = []
        self.wiring = ReplicaTransport(clients, self.replies.send, self.drops, self.unknown.append)
        context = replace(make_context(self, self.warned), stamp=lambda: Time(sec=7))
        self.publisher = DecisionPublisher(self.told.append, self.drops, context)
        self.robot = ClientSession(ask_of(), {'prod': ('/a',)}, 0)

    def dispatcher(self) -> Dispatcher:
        """Return a dispatcher that sends with this transport."""
        rules = replace(ROUTING, slot_prod=('/a',))
        table = RoutingTable(rules, placements=PlacementTable(10))
        table.sessions.add(self.robot)
        return Dispatcher(
            table,
            self.wiring,
            RequestObserver(),
            self.drops,
            pytest.fail,
            pytest.fail,
        )

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
def test_a_text_that_does_not_fit_keeps_no_robot_waiting(rig, text):
    rig.wiring.fail(rig.flight(), Status.NO_SESSION, text)
    assert rig.chunk().status == Status.NO_SESSION
    assert not rig.drops.counts()


def test_a_router_that_goes_away_tells_its_robots_and_nobody_else(rig):
    dispatcher = rig.dispatcher()
    dispatcher.refuse(request_bytes('robot', 9, 'e'), 77)
    chunk = rig.chunk()
    assert (chunk.header.seq, chunk.status, chunk.episode_id) == (9, Status.DRAINING, 'e')
    assert 'open a session with another server' in chunk.status_text
    assert rig.robot.last_heard_ns == 77
    dispatcher.refuse(request_bytes('robot', 9, 'e', epoch=2), 78)
    dispatcher.refuse(request_bytes('stranger', 9, 'e'), 78)
    dispatcher.refuse(b'\x00\x01\x00\x00', 78)
    assert len(rig.replies.sent) == 1
    assert rig.drops.counts() == {'draining': 1, 'no_session': 2, 'truncated': 1}


def test_a_decision_names_policy_and_replica(rig):
    rig.publisher.on_placed(rig.flight(), PLACED, '/a', 'act@a')
    (told,) = rig.told
    assert (told.slot, told.policy, told.server) == ('a', 'act@a', '/a')
    assert (told.client_id, told.episode_id, told.stamp.sec) == ('robot', 'episode-1', 7)
    assert not rig.warned


def test_a_placement_is_reported_with_the_replica_that_serves_it():
    rig, placed = DispatchRig(), []
    rig.robot()
    rig.outside.on_placed = lambda *what: placed.append(what)
    rig.request(episode=episode_in('a'))
    ((_, placement, server, policy),) = placed
    assert (placement.slot, server, policy) == ('a', rig.outside.sent[0][0], 'a@1')


def test_without_an_episode_it_is_said_once_and_counted_each_time(rig):
    degraded = Placement('robot:1:5', 12, 'a', 50, missing_episode_id=True)
    for _ in range(3):
        rig.publisher.on_placed(rig.flight(), degraded, '/a', 'act@a')
    assert rig.drops.counts() == {'no_episode_id': 3}
    (text,) = rig.warned
    assert 'set episode_id' in text


def test_every_observer_sees_everything_in_order(rig):
    flight, seen = rig.flight(), []

    class Observer(RequestObserver):
        def __init__(self, name: str) -> None:
            self.name = name

        def __getattribute__(self, name: str):
            if not name.startswith('on_'):
                return super().__getattribute__(name)
            return lambda *what: seen.append((self.name, name, *what))

    observers = RequestObservers([Observer('one'), Observer('two')])
    calls = {
        'on_requested': (rig.robot, flight.raw, flight.header, None),
        'on_placed': (flight, PLACED, '/a', 'act@a'),
        'on_replied': (flight, '/a', b'chunk', 'reply'),
        'on_failed': (flight, Status.NO_SLOT, 'why'),
        'on_dropped': (flight, 'timeout'),
    }
    for name, what in calls.items():
        getattr(observers, name)(*what)
    assert seen == [(who, name, *calls[name]) for name in calls for who in ('one', 'two')]


# the timer


def test_the_timer_asks_again_when_it_is_woken_and_when_something_is_due():
    timer, stop, asked = RequestTimer(), threading.Event(), []

    def on_timer(now_ns: int) -> int | None:
        asked.append(now_ns)
        if len(asked) == 1:
            # due at once
            return now_ns
        stop.set()
        timer.wake()
        return None

    timer.run(stop, lambda: 5, on_timer)
    assert asked == [5, 5]


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
