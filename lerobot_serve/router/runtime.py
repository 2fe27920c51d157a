"""
The router at work, between configure and cleanup: its threads, their begin and their end.

Plain but for what it is given. Built, begun, drained and closed by whoever goes through
transitions; `look` and `poll_slowly` are the executor's, `on_request` is the intake's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
import threading
import time
from typing import Any, Protocol

from lerobot_serve.router.api.messages import shadow_divergence
from lerobot_serve.router.core import RouterCore, shadow_rules
from lerobot_serve.router.data_path.replica_transport import RosTransport
from lerobot_serve.router.monitoring.health_monitor import (
    HealthMonitor,
    NodeContext,
    OperatorTopics,
)
from lerobot_serve.router.monitoring.trace_recorder import RouterTraceRecorder
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.router.sessions.job_queue import Job
from lerobot_serve.router.shadow.comparator import ShadowComparator, ShadowComparison
from lerobot_serve.router.shadow.feed import ShadowFeed
from lerobot_serve.router.shadow.sessions import ShadowClient

JOIN_LIMIT_S = 5.0
# what is under way when the router is drained has so long to be answered
DRAIN_LIMIT_S = 1.5
DRAIN_POLL_S = 0.005
# a replica that is as full or busy as this gives no second draws
SECOND_DRAW_MAX_LOAD = 0.7


class ReplicaConnections(Protocol):
    """The clients of all replicas and what they answer, as ros.replica_clients has them."""

    def listen(
        self, on_answer: Callable[[str, bytes], None], on_status: Callable[[str, Any], None]
    ) -> None: ...

    def run(self, stop: threading.Event) -> None: ...

    def wake(self) -> None: ...

    def is_there(self, server: str) -> bool: ...

    def close(self) -> None: ...


class ShadowConnections(Protocol):
    """The policy in shadow and replicas for second draws, as ros.shadow_clients has them."""

    shadow: ShadowClient
    again: dict[str, ShadowClient]

    def listen(
        self, on_chunk: Callable[[bytes], None], on_again: Callable[[bytes], None]
    ) -> None: ...

    def run(self, stop: threading.Event) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


StartThread = Callable[[str, Callable[[], None], Callable[[], None]], threading.Thread]


class RouterRuntime:
    """
    See the module. `start` starts a thread with a way to wake it for its end; `stop` ends them
    all, and the calls that clients make.
    """

    def __init__(
        self,
        serving: RouterCore,
        wiring: RosTransport,
        replicas: ReplicaConnections,
        shadow: ShadowConnections | None,
        topics: OperatorTopics,
        start: StartThread,
        here: NodeContext,
        *,
        stop: threading.Event,
        recorder: RouterTraceRecorder | None = None,
    ) -> None:
        self.serving, self._wiring = serving, wiring
        self._replicas, self._shadow = replicas, shadow
        self._topics, self._here, self.recorder = topics, here, recorder
        self._stop, self._closing = stop, threading.Lock()
        self.is_open = self.is_drained = False
        self.feed = self._make_feed(shadow) if shadow else None
        self.lookout = HealthMonitor(
            serving,
            replicas,
            topics,
            wiring.jobs,
            self.close_session,
            here,
            feed=self.feed,
            recorder=recorder,
        )
        wiring.shadow, wiring.policy_of = self.feed, lambda slot: serving.slots[slot].policy
        wiring.reopen_job = serving.control.reopen_session
        if recorder:
            serving.canary.happened = recorder.canary
        self._threads = list(self._start_threads(start))

    def _start_threads(self, start: StartThread) -> Iterator[threading.Thread]:
        stop, jobs = self._stop, self._wiring.jobs
        self._replicas.listen(self._on_answer, self.lookout.on_status)
        run = partial(self._replicas.run, stop)
        yield start('answers', run, partial(set_and_wake, stop, self._replicas.wake))
        yield start('alarm', self._run_alarm, self._wiring.wake)
        yield start('control', jobs.run, jobs.end)
        store = self.serving.writer
        yield start('store', partial(store.run, stop), partial(set_and_wake, stop, store.wake))
        if self._shadow:
            self._shadow.listen(self.feed.on_shadow_chunk, self.feed.on_again)
            yield start('shadow', partial(self.feed.run, stop), self.feed.wake)
            run = partial(self._shadow.run, stop)
            yield start('shadow_answers', run, self._shadow.wake)
        if self.recorder:
            writer = self.recorder.writer
            yield start('trace', partial(writer.run, stop), writer.wake)

    def _make_feed(self, shadow: ShadowConnections) -> ShadowFeed:
        return ShadowFeed(
            ShadowComparator(self.serving.qualification),
            shadow.shadow,
            self._second_draw_client,
            self._tell_comparison,
            shadow_rules(self.serving.parameters),
            clock=self._here.clock,
            tell=self._here.warn,
        )

    def _tell_comparison(self, found: ShadowComparison, action_names: tuple[str, ...]) -> None:
        self._topics.tell(shadow_divergence(found, action_names, self._here.stamp()))
        if self.recorder:
            self.recorder.shadow(found, action_names)

    def _second_draw_client(self, robot: ClientSession) -> ShadowClient | None:
        """Return whom to ask for a second draw: the robot's last choice, if it has time."""
        places = robot.places.get(robot.slot, ())
        if not places:
            return None
        replica = self.serving.replicas[places[-1]]
        has_time = replica.is_ready and replica.placement_load < SECOND_DRAW_MAX_LOAD
        return self._shadow.again[replica.name] if has_time else None

    # transitions

    def begin(self) -> None:
        """Take sessions and requests, once it is known what the slots ask of robots."""
        self.serving.settle()
        self._wiring.jobs.put_and_wait(self.serving.control.check_replicas, JOIN_LIMIT_S)
        self.lookout.record_policies()
        self.is_open, self.is_drained = True, False

    def drain(self) -> None:
        """Take no more; sessions stay, and what is under way has DRAIN_S to be answered."""
        self.is_open, self.is_drained = False, True
        deadline = time.monotonic() + DRAIN_LIMIT_S
        while self._has_in_flight() and time.monotonic() < deadline:
            self._stop.wait(DRAIN_POLL_S)

    def _has_in_flight(self) -> bool:
        """Return whether any robot waits for an answer."""
        dispatcher = self.serving.dispatcher
        with dispatcher.lock:
            return len(dispatcher.flights) > 0

    def close(self, limit_s: float = JOIN_LIMIT_S) -> None:
        """End all sessions, as far as that can be done in time, then the threads. Once."""
        with self._closing:
            if self._stop.is_set():
                return
            self.is_open, self.is_drained = False, True
            deadline = time.monotonic() + limit_s
            self._wiring.jobs.put_and_wait(self._close_sessions, limit_s)
            if self.feed:
                self.feed.finish(max(0.0, deadline - time.monotonic()))
            self._stop.set()
        self._end()

    def _end(self) -> None:
        self._wiring.wake()
        self._wiring.jobs.end()
        self._replicas.wake()
        self.serving.writer.wake()
        if self._shadow:
            self._shadow.wake()
            self.feed.wake()
        for thread in self._threads:
            thread.join(JOIN_LIMIT_S)
        self._replicas.close()
        if self._shadow:
            self._shadow.close()
        if self.recorder:
            self.recorder.writer.close()
        self.serving.close()

    # control thread

    def _close_sessions(self) -> None:
        for robot in self.serving.dispatcher.robots:
            if not self._stop.is_set():
                self.close_session(robot.ask.client_id, robot.ask.session_epoch)

    def close_session(self, client_id: str, session_epoch: int) -> ClientSession | None:
        """End a robot's session everywhere; return None when there is no such session."""
        robot = self.serving.control.close(client_id, session_epoch)
        if robot and self.feed:
            self.feed.on_session_closed(robot.ask)
        return robot

    # other threads

    def later(self, job: Job) -> bool:
        """Have the control thread do it; False when that has ended. Any thread."""
        return self._wiring.jobs.put(job)

    def on_request(self, raw: bytes) -> None:
        """A robot asks. Intake thread."""
        if self.is_open:
            self.serving.dispatcher.on_request(raw, self._here.clock())
        else:
            self._wiring.refuse(raw, self.serving.dispatcher.robots, self._here.clock())

    def _on_answer(self, server: str, raw: bytes) -> None:
        self.serving.dispatcher.on_answer(server, raw, self._here.clock())

    def _run_alarm(self) -> None:
        alarm, clock = self._wiring.alarm, self._here.clock
        while not self._stop.is_set():
            due_ns = self.serving.dispatcher.on_timer(clock())
            alarm.wait(None if due_ns is None else max(0.0, (due_ns - clock()) / 1e9))
            alarm.clear()

    # executor

    def look(self, parameters: RouterParameters) -> None:
        """Several times a second."""
        self.lookout.look(parameters, is_open=self.is_open)

    def poll_slowly(
        self, has_subscriber: Callable[[str], bool], parameters: RouterParameters
    ) -> None:
        """Once a second."""
        self.lookout.poll_slowly(has_subscriber, parameters)

    def change(self, parameters: RouterParameters) -> None:
        """Bring in what may change live."""
        if self.recorder:
            self.recorder.parameters(self.serving.parameters, parameters)
        self.serving.change(parameters)
        if self.feed:
            self.feed.rules = shadow_rules(parameters)


def set_and_wake(stop: threading.Event, wake: Callable[[], None]) -> None:
    """End a thread that waits for something else than `stop`, when the process ends."""
    stop.set()
    wake()
