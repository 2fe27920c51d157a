# SPDX-License-Identifier: Apache-2.0
"""
Run a router between configure and cleanup: start, drain and end its threads.

No ROS but for its arguments. The thread of a transition builds, begins, drains and closes it; the
executor calls `poll` and `poll_slowly`, the thread `intake` calls `on_request`.
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
# time limit of a drain for requests in flight
DRAIN_LIMIT_S = 1.5
DRAIN_POLL_S = 0.005
# a replica with this load or more serves no second draws
SECOND_DRAW_MAX_LOAD = 0.7


class ReplicaConnections(Protocol):
    """The clients of all replicas and their replies, as ros.replica_clients has them."""

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
    See the module. `start` starts a thread, given how to wake it at the end; `stop` ends all
    threads, and the calls of clients.
    """

    def __init__(
        self,
        core: RouterCore,
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
        self.core, self._wiring = core, wiring
        self._replicas, self._shadow = replicas, shadow
        self._topics, self._here, self.recorder = topics, here, recorder
        self._stop, self._closing = stop, threading.Lock()
        self.is_open = self.is_drained = False
        self.feed = self._make_feed(shadow) if shadow else None
        self.lookout = HealthMonitor(
            core,
            replicas,
            topics,
            wiring.jobs,
            self.close_session,
            here,
            feed=self.feed,
            recorder=recorder,
        )
        wiring.shadow, wiring.policy_of = self.feed, lambda slot: core.slots[slot].policy
        wiring.reopen_job = core.control.reopen_session
        if recorder:
            core.canary.on_event = recorder.canary
        self._threads = list(self._start_threads(start))

    def _start_threads(self, start: StartThread) -> Iterator[threading.Thread]:
        stop, jobs = self._stop, self._wiring.jobs
        self._replicas.listen(self._on_answer, self.lookout.on_status)
        run = partial(self._replicas.run, stop)
        yield start('replies', run, partial(set_and_wake, stop, self._replicas.wake))
        yield start('alarm', self._run_alarm, self._wiring.wake)
        yield start('control', jobs.run, jobs.end)
        store = self.core.writer
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
            ShadowComparator(self.core.qualification),
            shadow.shadow,
            self._second_draw_client,
            self._publish_comparison,
            shadow_rules(self.core.parameters),
            clock=self._here.clock,
            warn=self._here.warn,
        )

    def _publish_comparison(self, found: ShadowComparison, action_names: tuple[str, ...]) -> None:
        self._topics.publish(shadow_divergence(found, action_names, self._here.stamp()))
        if self.recorder:
            self.recorder.shadow(found, action_names)

    def _second_draw_client(self, robot: ClientSession) -> ShadowClient | None:
        """Return the client for a second draw: the last choice, unless it is busy."""
        places = robot.places.get(robot.slot, ())
        if not places:
            return None
        replica = self.core.replicas[places[-1]]
        has_time = replica.is_ready and replica.placement_load < SECOND_DRAW_MAX_LOAD
        return self._shadow.again[replica.name] if has_time else None

    # transitions

    def begin(self) -> None:
        """Accept sessions and requests, once the requirements of the slots are known."""
        self.core.pin_policies()
        self._wiring.jobs.put_and_wait(self.core.control.check_replicas, JOIN_LIMIT_S)
        self.lookout.record_policies()
        self.is_open, self.is_drained = True, False

    def drain(self) -> None:
        """Refuse new work; sessions stay, requests in flight have DRAIN_LIMIT_S."""
        self.is_open, self.is_drained = False, True
        deadline = time.monotonic() + DRAIN_LIMIT_S
        while self._has_in_flight() and time.monotonic() < deadline:
            self._stop.wait(DRAIN_POLL_S)

    def _has_in_flight(self) -> bool:
        """Return whether any request is in flight."""
        dispatcher = self.core.dispatcher
        with dispatcher.lock:
            return len(dispatcher.in_flight) > 0

    def close(self, limit_s: float = JOIN_LIMIT_S) -> None:
        """Close all sessions within the time limit, then end the threads. Once."""
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
        self.core.writer.wake()
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
        self.core.close()

    # control thread

    def _close_sessions(self) -> None:
        for robot in self.core.dispatcher.robots:
            if not self._stop.is_set():
                self.close_session(robot.ask.client_id, robot.ask.session_epoch)

    def close_session(self, client_id: str, session_epoch: int) -> ClientSession | None:
        """Close a session at all replicas; return None when there is no such session."""
        robot = self.core.control.close(client_id, session_epoch)
        if robot and self.feed:
            self.feed.on_session_closed(robot.ask)
        return robot

    # other threads

    def later(self, job: Job) -> bool:
        """Queue a job for the thread `control`; False when it has ended. Any thread."""
        return self._wiring.jobs.put(job)

    def on_request(self, raw: bytes) -> None:
        """Handle a request. Thread `intake`."""
        if self.is_open:
            self.core.dispatcher.on_request(raw, self._here.clock())
        else:
            self._wiring.refuse(raw, self.core.dispatcher.robots, self._here.clock())

    def _on_answer(self, server: str, raw: bytes) -> None:
        self.core.dispatcher.on_answer(server, raw, self._here.clock())

    def _run_alarm(self) -> None:
        alarm, clock = self._wiring.alarm, self._here.clock
        while not self._stop.is_set():
            due_ns = self.core.dispatcher.on_timer(clock())
            alarm.wait(None if due_ns is None else max(0.0, (due_ns - clock()) / 1e9))
            alarm.clear()

    # executor

    def poll(self, parameters: RouterParameters) -> None:
        """Several times a second."""
        self.lookout.poll(parameters, is_open=self.is_open)

    def poll_slowly(
        self, has_subscriber: Callable[[str], bool], parameters: RouterParameters
    ) -> None:
        """Once a second."""
        self.lookout.poll_slowly(has_subscriber, parameters)

    def change(self, parameters: RouterParameters) -> None:
        """Apply parameters that may change live."""
        if self.recorder:
            self.recorder.parameters(self.core.parameters, parameters)
        self.core.change(parameters)
        if self.feed:
            self.feed.rules = shadow_rules(parameters)


def set_and_wake(stop: threading.Event, wake: Callable[[], None]) -> None:
    """Set `stop` and wake a thread that waits for something else."""
    stop.set()
    wake()
