# SPDX-License-Identifier: Apache-2.0
"""
The client of a benchmark: sends as the edge does, and waits as the edge does.

A thread of its own deposits what arrives with its time; the main thread asks and waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
import queue
import time

from benchmarks.harness import echo
from benchmarks.harness.processes import wait_until
from lerobot_serve.contract.cdr import ENCAPSULATION
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.errors import UserError
from lerobot_serve.links.link import LinkCallbacks
from lerobot_serve.links.ros.link import RosLink, RosReplies
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.links.zenoh import zenoh_client
from lerobot_serve.local.path import LocalPath
from lerobot_serve.local.signal import Signal
from lerobot_serve.ros import qos
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.ros.subscriptions import DedicatedSubscriptions
from lerobot_serve.zenoh.keys import Role
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve_interfaces.msg import ActionChunk, Observation

SERVER = '/policy_server'
LIFESPAN_S = 3.0
ANSWER_TIMEOUT_S = 2.0
READY_TIMEOUT_S = 60.0
OPEN_S, OPEN_RETRY_S = 5.0, 0.05
# a server that loads, and a router whose servers do
RETRYABLE_REFUSALS = (Refusal.NOT_READY, Refusal.UNREACHABLE)


def open_when_ready(
    sessions: ServerClient,
    ask: OpenSessionRequest,
    is_running: Callable[[], bool] = lambda: True,
) -> None:
    """
    Open a session as an edge does: who does not answer yet, or is not ready yet, is asked again;
    no longer when the server is not `is_running`. Raises UserError and Refused.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            sessions.open(ask, OPEN_S)
            return
        except (SessionRefused, ServerUnreachable) as error:
            if isinstance(error, SessionRefused) and error.code not in RETRYABLE_REFUSALS:
                raise
            if not is_running() or time.monotonic() > deadline:
                raise UserError(f'{error}; see the log of {sessions.server}') from None
        time.sleep(OPEN_RETRY_S)


@dataclass(frozen=True, slots=True)
class TimedReply:
    """An answer, and when the executor had it."""

    raw: bytes
    arrived_ns: int


class Inbox:
    """A thread of a link deposits, the main thread takes; `signal` may receive meanwhile."""

    def __init__(self, answer_s: float = ANSWER_TIMEOUT_S) -> None:
        self._answer_s, self.signal = answer_s, Signal()
        self._queue: queue.SimpleQueue[TimedReply] = queue.SimpleQueue()

    def deposit(self, raw: bytes) -> None:
        self._queue.put(TimedReply(raw, time.monotonic_ns()))
        self.signal.set()

    def take(self) -> TimedReply | None:
        """Wait for an answer; None when it did not come in time."""
        self.signal.wait(self._answer_s)
        self.signal.clear()
        return None if self._queue.empty() else self._queue.get_nowait()

    def clear(self) -> None:
        """Drop what came too late."""
        while not self._queue.empty():
            self._queue.get_nowait()


class PolicyClient(SteadyClockNode):
    """
    A client of one policy server or router. Built by the main thread, which also calls everything
    but the inboxes' `deposit`. An answer is waited for `answer_s`; a request that was lost on the
    way is sent again until `lifespan_s` is over. `uses_local`: on the local path.
    """

    def __init__(
        self,
        runtime: NodeRuntime,
        name: str = 'bench',
        server: str = SERVER,
        *,
        answer_s: float = ANSWER_TIMEOUT_S,
        lifespan_s: float = LIFESPAN_S,
        uses_local: bool = False,
    ) -> None:
        super().__init__(name, context=runtime.context)
        self.server = server
        self.chunks = Inbox(answer_s)
        # chunks arrive as at the edge
        lane = DedicatedSubscriptions(self, ActionChunk, {}, qos.ACTION_CHUNK)
        self.sessions = ServerClient(
            RosLink(self, server, lifespan_s=lifespan_s),
            RosReplies(self, lane, server, f'/{name}/action_chunk'),
        )
        make_path = partial(LocalPath, lifespan_s=lifespan_s, callers_receive=True)
        self.sessions.listen(LinkCallbacks(self.chunks.deposit), make_path if uses_local else None)
        self.chunks.signal = self.sessions.signal()
        self.session_request_for = self.sessions.session_request_for
        runtime.thread('replies', partial(lane.run, runtime.stop), lane.wake)

    def wait_until_matched(self) -> None:
        """Return when requests and chunks are connected. Raises UserError."""
        if not self.sessions.wait_until_matched(READY_TIMEOUT_S):
            raise UserError(f'the topics of {self.server} were not found')


class ZenohConnection:
    """
    A robot's connection to one policy server or router over Zenoh; `close` ends it. `name` is also
    the client id. A thread of Zenoh calls `on_chunk`, or with `uses_local` one of the local path.
    A robot on a machine of its own has no `shared_memory` with the server.
    """

    def __init__(
        self,
        endpoint: str,
        name: str,
        server: str,
        on_chunk: Callable[[bytes], None],
        *,
        shared_memory: bool = True,
        uses_local: bool = False,
    ) -> None:
        self.server, self.endpoint = server, endpoint
        self._link = ZenohLink(ZenohSettings(connect=(endpoint,), shared_memory=shared_memory))
        self.sessions = zenoh_client(self._link, server, Role.ROBOT, name)
        make_path = partial(LocalPath, lifespan_s=LIFESPAN_S) if uses_local else None
        self.sessions.listen(LinkCallbacks(on_chunk), make_path)
        self.session_request_for = self.sessions.session_request_for

    def wait_until_matched(self) -> None:
        """Return when the server reads requests. Raises UserError."""
        if not self.sessions.wait_until_matched(READY_TIMEOUT_S):
            raise UserError(f'{self.server} does not read requests')

    def close(self) -> None:
        self.sessions.end()
        self._link.close()


class ZenohPolicyClient(ZenohConnection):
    """As PolicyClient, over Zenoh."""

    def __init__(
        self, endpoint: str, name: str, server: str = SERVER, answer_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self.chunks = Inbox(answer_s)
        super().__init__(endpoint, name, server, self.chunks.deposit)


class EchoClient(SteadyClockNode):
    """A client of the echo, with bare rclpy. The main thread builds it and asks."""

    def __init__(self, runtime: NodeRuntime) -> None:
        super().__init__('bench_echo', context=runtime.context)
        self._echoes = Inbox()
        self.create_subscription(
            ActionChunk, echo.REPLIES, self._echoes.deposit, qos.ACTION_CHUNK, raw=True
        )
        self._echo = self.create_publisher(
            Observation, echo.REQUESTS, qos.observation_writer(LIFESPAN_S)
        )

    def wait(self) -> None:
        """Return when the echo is connected in both directions. Raises UserError."""
        wait_until(
            lambda: self._echo.get_subscription_count() and self.count_publishers(echo.REPLIES),
            f'the echo did not appear within {READY_TIMEOUT_S:g} s',
            READY_TIMEOUT_S,
        )

    def trip_of(self, size_bytes: int) -> Callable[[], float | None]:
        """Return what sends so many bytes: the time [ms], None when nothing came back."""
        raw = ENCAPSULATION + bytes(size_bytes - len(ENCAPSULATION))

        def trip_ms() -> float | None:
            self._echoes.clear()
            begin_ns = time.perf_counter_ns()
            self._echo.publish(raw)
            answer = self._echoes.take()
            return (time.perf_counter_ns() - begin_ns) / 1e6 if answer else None

        return trip_ms
