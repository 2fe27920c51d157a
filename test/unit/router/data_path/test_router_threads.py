# SPDX-License-Identifier: Apache-2.0
"""The router's threads at once: none waits for another for ever, and no request is lost."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
import queue
import sys
import threading
import time

import pytest
from support.router.dispatch_rig import (
    answer_bytes,
    ask_of,
    check_counts,
    LockedOutside,
    policy_of,
    request_bytes,
    Rig,
)
from support.router.replica_rig import ControlRig

from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.schema import Status
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.router.sessions.call_pool import ReplicaCallPool

WAIT_S = 60.0
ROBOTS = [f'robot-{number}' for number in range(12)]
REQUESTS = 1500
ENDS = ('superseded', 'session_over', 'episode_over')


@pytest.fixture(autouse=True)
def impatient_threads():
    """Let threads take turns as often as they can."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval_s)


class Servers(LockedOutside):
    """Hands requests over to the thread that answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_of: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self.due = threading.Event()

    def send(self, server: str, raw: bytes) -> None:
        super().send(server, raw)
        self.asked_of.put((server, raw))

    def wake(self) -> None:
        self.called()
        self.due.set()


class Stress:
    """Each thread of a router, as fast as it can."""

    def __init__(self) -> None:
        self.outside = Servers()
        self.rig = ControlRig(outside=self.outside)
        self.rig.rules(reply_timeout_s=0.02)
        self.control = self.rig.control
        self.done = threading.Event()
        for name in ROBOTS:
            self.control.open(ask_of(name))

    def intake(self) -> None:
        try:
            for seq in range(1, REQUESTS + 1):
                name = ROBOTS[seq % len(ROBOTS)]
                # no robot is so far ahead of the servers that nothing but supersession is tried
                deadline = time.monotonic() + WAIT_S
                while self.outside.asked_of.qsize() > len(ROBOTS) and time.monotonic() < deadline:
                    time.sleep(0)
                raw = request_bytes(name, seq, f'{name}-{seq // 100}')
                self.rig.dispatcher.on_request(raw, time.monotonic_ns())
        finally:
            self.outside.asked_of.put(None)

    def answers(self) -> None:
        try:
            for number, (server, raw) in enumerate(iter(self.outside.asked_of.get, None)):
                # one in ten is lost, one in ten fails
                status = Status.POLICY_ERROR if number % 10 == 3 else Status.OK
                if number % 10 != 7:
                    slot = self.rig.replicas[server].slot
                    answer = answer_bytes(raw, status, policy_of(slot), slot)
                    self.rig.dispatcher.on_reply(server, answer, time.monotonic_ns())
        finally:
            self.done.set()
            self.outside.due.set()

    def alarm(self) -> None:
        while not self.done.is_set():
            due_ns = self.rig.dispatcher.on_timer(time.monotonic_ns())
            wait_s = 0.1 if due_ns is None else (due_ns - time.monotonic_ns()) / 1e9
            self.outside.due.wait(max(0.0, min(wait_s, 0.1)))
            self.outside.due.clear()

    def sessions(self) -> None:
        """The control thread: one robot's session is opened twice, another's places are lost."""
        while not self.done.is_set():
            self.control.open(ask_of(ROBOTS[0]))
            robot = self.rig.robots.current(ROBOTS[1])
            self.rig.clients['/a1'].sessions.clear()
            self.control.reopen_session(robot, '/a1')
            self.control._remove_place(robot, robot.places['b'][0])
            self.control.maintain_sessions()

    def operators(self) -> None:
        """The executor: statuses, reports, a slot that is closed and restored."""
        while not self.done.is_set():
            for server in self.rig.replicas:
                self.rig.learn(server)
            with self.rig.table.lock:
                self.rig.drain('b')
            with self.rig.table.lock:
                self.rig.slots['b'].health.mark_healthy()
                len(self.rig.table.in_flight)

    def run(self) -> None:
        parts = (self.intake, self.answers, self.alarm, self.sessions, self.operators)
        start = threading.Barrier(len(parts), timeout=WAIT_S)
        with ThreadPoolExecutor(len(parts), initializer=start.wait) as pool:
            for part in [pool.submit(part) for part in parts]:
                part.result(WAIT_S)


def test_threads_lose_no_request_and_answer_none_twice():
    stress = Stress()
    rig, outside = stress.rig, stress.outside
    try:
        stress.run()
        replies = Counter(read_envelope(raw).header.seq for _, raw in outside.replies)
        failures = Counter(flight.seq for flight, _, _ in outside.failures)
        assert max((replies + failures).values()) == 1
        ended = sum(rig.drop(reason) for reason in ENDS)
        assert len(replies) + len(failures) + ended + len(rig.table.in_flight) == REQUESTS
        assert len(replies) > REQUESTS // 4
        assert len(outside.heard) == REQUESTS
        check_counts(rig.slots, rig.robots)
    finally:
        rig.callers.close()


def test_the_next_due_is_never_later_than_what_is_due():
    """The alarm is woken for all that it does not know of yet."""
    rig = Rig(robot='robot')
    for number in range(50):
        rig.rules(reply_timeout_s=(50 - number) / 1000)
        rig.robot(f'robot-{number}')
        wakes = rig.outside.wakes
        known_ns = rig.dispatcher._timer_ns
        rig.request(f'robot-{number}')
        due_ns = rig.table.in_flight.next_due_ns
        woken = rig.outside.wakes > wakes
        assert woken == (known_ns is None or due_ns < known_ns)
        assert rig.dispatcher._timer_ns <= due_ns


class Slow:
    """A client whose calls hang until it is let go."""

    def __init__(self) -> None:
        self.let_go, self.called = threading.Event(), threading.Event()
        self.calls = 0

    def status(self, timeout_s: float) -> str:
        self.calls += 1
        self.called.set()
        if not self.let_go.wait(timeout_s):
            raise ServerUnreachable('too slow')
        return 'there'


def test_one_that_hangs_keeps_the_call_of_another_waiting_for_nothing():
    slow, quick = Slow(), Slow()
    quick.let_go.set()
    callers = ReplicaCallPool({'/slow': slow, '/quick': quick})
    try:
        future = callers.submit('/slow', lambda client: client.status(WAIT_S))
        assert slow.called.wait(WAIT_S)
        assert callers.each(['/quick'], lambda client: client.status(WAIT_S)) == {
            '/quick': 'there'
        }
        slow.let_go.set()
        assert future.result(WAIT_S) == 'there'
    finally:
        slow.let_go.set()
        callers.close()


def test_who_left_a_call_unanswered_is_called_again_once_it_answers():
    client = Slow()
    callers = ReplicaCallPool({'/slow': client})

    def call() -> object:
        return callers.each(['/slow'], lambda client: client.status(0.0))['/slow']

    try:
        assert str(call()) == 'too slow'
        client.called.clear()
        assert 'last call timed out' in str(call())
        assert callers.unresponsive == {'/slow'}
        assert not client.called.is_set()
        callers.probe(WAIT_S)
        assert client.called.wait(WAIT_S)
        # one probe at a time, which keeps nobody waiting
        callers.probe(WAIT_S)
        assert isinstance(call(), ServerUnreachable)
        client.let_go.set()
        callers._probes['/slow'].result(WAIT_S)
        assert call() == 'there'
        assert callers.unresponsive == set()
        assert client.calls == 3
    finally:
        client.let_go.set()
        callers.close()


def test_a_probe_that_fails_is_followed_by_another():
    client = Slow()
    callers = ReplicaCallPool({'/slow': client})
    try:
        callers.each(['/slow'], lambda client: client.status(0.0))
        for _ in range(2):
            client.called.clear()
            callers.probe(0.0)
            assert client.called.wait(WAIT_S)
            callers._probes['/slow'].exception(WAIT_S)
            assert callers.is_unresponsive('/slow')
    finally:
        client.let_go.set()
        callers.close()
