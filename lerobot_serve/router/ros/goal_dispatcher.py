# SPDX-License-Identifier: Apache-2.0
"""
Send PredictChunk goals to policy servers and receive their results.

Only the thread `goals` uses action clients; it spins a separate node. rclpy raises when a reply
arrives while another thread is inside a call of the same client, before its future is registered.
Other threads enqueue their calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
import queue
import time
from typing import TYPE_CHECKING

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.action.client import ClientGoalHandle
from rclpy.logging import LoggingSeverity
from rclpy.node import Node
from rclpy.task import Future

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.names import is_over_zenoh, node_name
from lerobot_serve.contract.schema import Status
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.predict_chunk_action import message_from_chunk, observation_bytes
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.executor import ExecutorFuture, RobustExecutor
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.zenoh.keys import PREDICT_CHUNK, Role, ServerKeys, WITHDRAW, WITHDRAWN
from lerobot_serve.zenoh.settings import Traffic
from lerobot_serve_interfaces.action import PredictChunk
from lerobot_serve_interfaces.msg import ActionChunk

if TYPE_CHECKING:
    from lerobot_serve.zenoh.link import ZenohLink

POLL_PERIOD_S = 0.05
RETRY_HINT = 'send the goal again, and see ~/state if that does not help'
SHUTDOWN_TEXT = 'the router is draining; send the goal to another server'


@dataclass(slots=True, eq=False)
class GoalRequest:
    """
    One goal. The thread `goals` calls `reply` or `fail` once. For a canceled goal it calls neither
    and sets the futures in `cancel_waiters` to True.
    """

    key: str
    server: str
    goal: PredictChunk.Goal
    reply: Callable[[ActionChunk], None]
    fail: Callable[[Status, str], None]
    started_s: float
    limit_s: float
    sent: Future | None = None
    handle: ClientGoalHandle | None = None
    result: Future | None = None
    cancel_waiters: list[ExecutorFuture] = field(default_factory=list)

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() - self.started_s >= self.limit_s

    @property
    def timeout_text(self) -> str:
        """The reason of the timeout."""
        if self.sent is None:
            return f'{self.server} was not found within {self.limit_s:g} s'
        verb = 'reply' if self.handle else 'accept the goal'
        return f'{self.server} did not {verb} within {self.limit_s:g} s'


class GoalDispatcher:
    """Any thread calls the public methods; private ones run in the thread `goals`."""

    def __init__(self, host: Node, runtime: NodeRuntime, link: ZenohLink | None) -> None:
        """`link` reaches the servers over Zenoh."""
        self._host, self._link = host, link
        # remappings of the command line apply to the host only
        self._node = SteadyClockNode(
            f'_{host.get_name()}_goals',
            context=runtime.context,
            namespace=host.get_namespace(),
            use_global_arguments=False,
            start_parameter_services=False,
            enable_rosout=False,
        )
        # rclpy warns of each reply to a goal that has timed out
        self._node.get_logger().get_child('action_client').set_level(LoggingSeverity.ERROR)
        self._executor = RobustExecutor(context=runtime.context)
        self._executor.add_node(self._node)
        self._timer = self._node.create_timer(POLL_PERIOD_S, self._poll)
        self._timer.cancel()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._clients: dict[str, ActionClient] = {}
        self._in_flight: dict[str, GoalRequest] = {}
        self._has_ended = False
        runtime.thread('goals', self._run, partial(self._enqueue, self._end))

    def __len__(self) -> int:
        return len(self._in_flight)

    def send(self, request: GoalRequest) -> None:
        """Send a goal as soon as its server is found."""
        self._enqueue(partial(self._begin, request))

    def cancel(self, key: str) -> ExecutorFuture:
        """Cancel a goal; the future, for the executor of the host, is True when it is canceled."""
        outcome = ExecutorFuture(self._host.executor)
        self._enqueue(partial(self._cancel, key, outcome))
        return outcome

    def fail_all(self) -> None:
        """Fail all goals with DRAINING."""
        self._enqueue(self._fail_all)

    def close_clients(self) -> None:
        """Destroy all action clients. Without goals in flight."""
        self._enqueue(self._close_clients)

    def _enqueue(self, call: Callable[[], None]) -> None:
        """Run a call in the thread `goals`. The queue keeps the order; rclpy tasks have none."""
        self._calls.put(call)
        self._executor.create_task(self._run_next)

    def _run_next(self) -> None:
        self._calls.get()()

    def _run(self) -> None:
        while not self._has_ended:
            self._executor.spin_once()
        self._close_clients()
        # the executor is not shut down: create_task would raise in threads that enqueue later
        self._executor.remove_node(self._node)
        self._node.destroy_node()

    def _end(self) -> None:
        self._has_ended = True

    def _begin(self, request: GoalRequest) -> None:
        self._in_flight[request.key] = request
        self._timer.reset()
        self._send(request)

    def _send(self, request: GoalRequest) -> None:
        """Send a goal, unless it was sent or its server is not found yet."""
        if is_over_zenoh(request.server):
            self._send_over_zenoh(request)
            return
        if request.server not in self._clients:
            name = f'{request.server}/predict_chunk'
            self._clients[request.server] = ActionClient(
                self._node,
                PredictChunk,
                name,
                goal_service_qos_profile=qos.SERVICES,
                result_service_qos_profile=qos.SERVICES,
                cancel_service_qos_profile=qos.SERVICES,
            )
        client = self._clients[request.server]
        if request.sent is None and client.server_is_ready():
            request.sent = client.send_goal_async(request.goal)
            request.sent.add_done_callback(partial(self._on_accepted, request))

    def _send_over_zenoh(self, request: GoalRequest) -> None:
        """Send the observation of a goal as a query, named by the key of the goal."""
        if request.sent or self._link is None:
            return
        try:
            raw = observation_bytes(request.goal, 1)
        except (Malformed, Unencodable) as error:
            self._fail(request, Status.BAD_OBSERVATION, str(error))
            return
        request.sent = Future()

        def on_reply(reply: bytes) -> None:
            self._enqueue(partial(self._on_reply_over_zenoh, request, reply))

        def on_refusal(text: str) -> None:
            self._enqueue(partial(self._on_refusal_over_zenoh, request, text))

        key, name = self._service_key(request, PREDICT_CHUNK), request.key.encode()
        self._link.call_later(
            key, raw, on_reply, on_refusal, request.limit_s, name, Traffic.OBSERVATION
        )

    def _service_key(self, request: GoalRequest, service: str) -> str:
        """Return the key of a service of the server of a goal."""
        assert self._link
        server = ServerKeys(self._link.settings.site, node_name(request.server))
        return server.client(Role.ROUTER, self._host.get_fully_qualified_name()).service(service)

    def _withdraw_over_zenoh(self, request: GoalRequest) -> None:
        """Withdraw a goal; a server that does not know the service leaves it to its chunk."""
        if self._link is None:
            return

        def on_reply(raw: bytes) -> None:
            self._enqueue(partial(self._on_withdrawal, request, is_withdrawn=raw == WITHDRAWN))

        self._link.call_later(
            self._service_key(request, WITHDRAW),
            request.key.encode(),
            on_reply,
            lambda _: on_reply(b''),
            # behind the goal, which it must not overtake
            traffic=Traffic.OBSERVATION,
        )

    def _on_withdrawal(self, request: GoalRequest, *, is_withdrawn: bool) -> None:
        if request.key in self._in_flight:
            self._on_cancel_outcome(request, is_canceled=is_withdrawn)

    def _on_refusal_over_zenoh(self, request: GoalRequest, text: str) -> None:
        if request.key in self._in_flight:
            text = f'{request.server} refused the goal ({text}); {RETRY_HINT}'
            self._fail(request, Status.NO_SESSION, text)

    def _on_reply_over_zenoh(self, request: GoalRequest, raw: bytes) -> None:
        if request.key not in self._in_flight:
            return
        try:
            chunk = message_from_chunk(wire_chunk.decode(raw))
        except Malformed as error:
            text = f'{request.server} replied with no chunk: {error}; {RETRY_HINT}'
            self._fail(request, Status.NO_SESSION, text)
            return
        self._finish(request)
        request.reply(chunk)

    def _on_accepted(self, request: GoalRequest, sent: Future) -> None:
        if request.key not in self._in_flight:
            return
        handle = sent.result()
        if not handle.accepted:
            text = f'{request.server} refused the goal; {RETRY_HINT}'
            self._fail(request, Status.NO_SESSION, text)
            return
        request.handle, request.result = handle, handle.get_result_async()
        request.result.add_done_callback(partial(self._on_result, request))
        if request.cancel_waiters:
            self._forward_cancel(request, handle)

    def _on_result(self, request: GoalRequest, result: Future) -> None:
        if request.key not in self._in_flight:
            return
        status, chunk = result.result().status, result.result().result.chunk
        if status == GoalStatus.STATUS_CANCELED and request.cancel_waiters:
            self._finish(request, is_canceled=True)
        elif status == GoalStatus.STATUS_SUCCEEDED or chunk.status:
            self._finish(request)
            request.reply(chunk)
        else:
            text = (
                f'{request.server} ended the goal without a chunk (status {status}); {RETRY_HINT}'
            )
            self._fail(request, Status.NO_SESSION, text)

    def _cancel(self, key: str, outcome: ExecutorFuture) -> None:
        request = self._in_flight.get(key)
        if request is None:
            self._resolve([outcome], is_canceled=False)
            return
        request.cancel_waiters.append(outcome)
        if request.sent is None:
            self._finish(request, is_canceled=True)
        elif request.handle:
            self._forward_cancel(request, request.handle)
        elif is_over_zenoh(request.server):
            self._withdraw_over_zenoh(request)

    def _forward_cancel(self, request: GoalRequest, handle: ClientGoalHandle) -> None:
        """Forward a cancel request; the server rejects it once the policy runs on the goal."""
        reply = handle.cancel_goal_async()
        reply.add_done_callback(partial(self._on_cancel, request))

    def _on_cancel(self, request: GoalRequest, reply: Future) -> None:
        if request.key not in self._in_flight:
            return
        self._on_cancel_outcome(request, is_canceled=bool(reply.result().goals_canceling))

    def _on_cancel_outcome(self, request: GoalRequest, *, is_canceled: bool) -> None:
        """End a canceled goal; one on which the policy has begun gets its chunk."""
        if is_canceled:
            self._finish(request, is_canceled=True)
        else:
            self._resolve(request.cancel_waiters, is_canceled=False)
            request.cancel_waiters.clear()

    def _poll(self) -> None:
        """Send goals whose server is found now, and fail overdue ones."""
        for request in list(self._in_flight.values()):
            if request.is_overdue:
                self._fail(request, Status.TOO_LATE, f'{request.timeout_text}; {RETRY_HINT}')
            else:
                self._send(request)

    def _fail_all(self) -> None:
        for request in list(self._in_flight.values()):
            self._fail(request, Status.DRAINING, SHUTDOWN_TEXT)

    def _fail(self, request: GoalRequest, status: Status, text: str) -> None:
        if request.handle:
            # spares a slow server the work; the response is ignored
            request.handle.cancel_goal_async().cancel()
        elif request.sent and is_over_zenoh(request.server):
            self._withdraw_over_zenoh(request)
        self._finish(request)
        request.fail(status, text)

    def _finish(self, request: GoalRequest, *, is_canceled: bool = False) -> None:
        """Remove a goal and cancel its futures, so that the action client drops them."""
        del self._in_flight[request.key]
        if not self._in_flight:
            self._timer.cancel()
        for future in filter(None, (request.sent, request.result)):
            future.cancel()
        self._resolve(request.cancel_waiters, is_canceled=is_canceled)

    def _resolve(self, cancel_waiters: list[ExecutorFuture], *, is_canceled: bool) -> None:
        for outcome in cancel_waiters:
            outcome.set_result(is_canceled)

    def _close_clients(self) -> None:
        for client in self._clients.values():
            client.destroy()
        self._clients.clear()
