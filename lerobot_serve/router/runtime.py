# SPDX-License-Identifier: Apache-2.0
"""
Run a router between configure and cleanup: start, drain and end its threads.

Connections are arguments; no other ROS. The thread of a transition creates, starts, drains and
closes a RouterRuntime; the executor calls `poll`, and the slow poll of its monitor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time

from lerobot_serve.router.context import NodeContext
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.links import ReplicaConnections
from lerobot_serve.router.monitoring.health_monitor import HealthMonitor

# time limit of a drain for requests in flight
DRAIN_LIMIT_S = 1.5
DRAIN_POLL_S = 0.005
JOIN_LIMIT_S = 5.0
# starts a thread with name, body and the function that wakes it at the end of the process
StartThread = Callable[[str, Callable[[], None], Callable[[], None]], threading.Thread]


class ThreadGroup:
    """
    Threads that end together: each runs until `stop` is set and it is woken. The thread of a
    transition owns the group.
    """

    def __init__(self, start: StartThread) -> None:
        self.stop = threading.Event()
        self._start = start
        self._threads: list[threading.Thread] = []
        self._wakes: list[Callable[[], None]] = []

    def start(
        self, name: str, run: Callable[[threading.Event], None], wake: Callable[[], None]
    ) -> None:
        """Start a thread that calls `run(stop)`; `wake` ends its current wait."""
        self._wakes.append(wake)
        thread = self._start(name, partial(run, self.stop), partial(self._end_one, wake))
        self._threads.append(thread)

    def _end_one(self, wake: Callable[[], None]) -> None:
        self.stop.set()
        wake()

    def end(self) -> None:
        """Set `stop`, wake all threads and wait for each up to JOIN_LIMIT_S."""
        self.stop.set()
        for wake in self._wakes:
            wake()
        for thread in self._threads:
            thread.join(JOIN_LIMIT_S)


class RouterRuntime:
    """See the module. The constructor starts `threads`, `close` ends them."""

    def __init__(
        self,
        core: RouterCore,
        replicas: ReplicaConnections,
        threads: ThreadGroup,
        context: NodeContext,
    ) -> None:
        self.core, self._replicas, self._threads = core, replicas, threads
        self._clock, self._closing = context.clock, threading.Lock()
        self.monitor = HealthMonitor(core, replicas, context)
        self._start_threads()

    def _start_threads(self) -> None:
        core, threads, replicas = self.core, self._threads, self._replicas
        dispatcher, shadow = core.dispatcher, core.links.shadow
        replicas.listen(core.on_reply, self.monitor.on_status)
        threads.start('replies', replicas.run, replicas.wake)
        threads.start(
            'alarm', lambda stop: dispatcher.run_timer(stop, self._clock), dispatcher.timer.wake
        )
        threads.start('control', lambda stop: core.jobs.run(), core.jobs.end)
        threads.start('store', core.writer.run, core.writer.wake)
        if core.follower:
            threads.start('state', core.follower.run, core.follower.wake)
        if shadow and core.feed:
            shadow.listen(core.feed.on_shadow_chunk, core.feed.on_second_draw)
            threads.start('shadow', core.feed.run, core.feed.wake)
            threads.start('shadow_replies', shadow.run, shadow.wake)
        if core.recorder:
            threads.start('trace', core.recorder.writer.run, core.recorder.writer.wake)

    # transitions

    def begin(self) -> None:
        """Check the slots, then accept sessions and requests."""
        core = self.core
        core.pin_policies()
        core.jobs.put_and_wait(core.session_manager.check_replicas, JOIN_LIMIT_S)
        self.monitor.record_policies()
        core.is_open, core.is_drained = True, False

    def drain(self) -> None:
        """Refuse new sessions and requests; wait up to DRAIN_LIMIT_S for those in flight."""
        self.core.is_open, self.core.is_drained = False, True
        if self.core.follower:
            self.core.follower.rest()
        deadline = time.monotonic() + DRAIN_LIMIT_S
        while self._has_in_flight() and time.monotonic() < deadline:
            self._threads.stop.wait(DRAIN_POLL_S)
        self.core.hand_over_episodes()

    def _has_in_flight(self) -> bool:
        """Return whether any request is in flight."""
        with self.core.table.lock:
            return len(self.core.table.in_flight) > 0

    def close(self, limit_s: float = JOIN_LIMIT_S) -> None:
        """Close all sessions within the time limit, then end the threads. Idempotent."""
        core = self.core
        with self._closing:
            if self._threads.stop.is_set():
                return
            core.is_open, core.is_drained = False, True
            deadline = time.monotonic() + limit_s
            core.jobs.put_and_wait(self._close_sessions, limit_s)
            if core.feed:
                core.feed.finish(max(0.0, deadline - time.monotonic()))
            core.hand_over_episodes()
            self._threads.end()
        self._replicas.close()
        if core.links.shadow:
            core.links.shadow.close()
        if core.recorder:
            core.recorder.writer.close()
        core.close()

    def _close_sessions(self) -> None:
        """Close all sessions. Thread `control`."""
        for session in self.core.table.sessions:
            if not self._threads.stop.is_set():
                self.core.close_session(session.request.client_id, session.request.session_epoch)

    # executor

    def poll(self) -> None:
        """Poll the monitor. Several times per second."""
        self.core.writer.expire()
        self.monitor.poll()
