# SPDX-License-Identifier: Apache-2.0
"""
Goals of PredictChunk on their way to policy servers.

All that touches an action client happens in the thread `goals`, which spins a node of its own: an
answer that arrives while another thread is inside a call of such a client finds a future that
rclpy has not noted yet, and raises. Other threads hand their work over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
import queue
import time

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.action.client import ClientGoalHandle
from rclpy.logging import LoggingSeverity
from rclpy.node import Node
from rclpy.task import Future

from lerobot_serve.ros import qos
from lerobot_serve.ros.node.executor_future import ExecutorFuture
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime, RobustExecutor
from lerobot_serve.wire.schema import Status
from lerobot_serve_interfaces.action import PredictChunk
from lerobot_serve_interfaces.msg import ActionChunk

POLL_PERIOD_S = 0.05
RETRY_HINT = 'send the goal again, and see ~/state if that does not help'
SHUTDOWN_TEXT = 'the router is draining; send the goal to another server'


@dataclass(slots=True, eq=False)
class GoalRequest:
    """
    One goal. Of `answer` and `fail` one is called once, in the thread `goals`; neither when it is
    withdrawn, then the futures in `cancel_waiters` hold True.
    """

    key: str
    server: str
    goal: PredictChunk.Goal
    answer: Callable[[ActionChunk], None]
    fail: Callable[[Status, str], None]
    begun_s: float
    limit_s: float
    sent: Future | None = None
    handle: ClientGoalHandle | None = None
    result: Future | None = None
    cancel_waiters: list[ExecutorFuture] = field(default_factory=list)

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() - self.begun_s >= self.limit_s

    @property
    def lateness(self) -> str:
        """What has not happened in time."""
        if self.sent is None:
            return f'{self.server} was not found within {self.limit_s:g} s'
        what = 'answer' if self.handle else 'take the goal'
        return f'{self.server} did not {what} within {self.limit_s:g} s'


class GoalDispatcher:
    """What has no underscore may be called by any thread; the rest is the thread `goals`."""

    def __init__(self, host: Node, runtime: NodeRuntime) -> None:
        self._host = host
        # what the command line says of names holds for the host
        self._node = SteadyClockNode(
            f'_{host.get_name()}_goals',
            context=runtime.context,
            namespace=host.get_namespace(),
            use_global_arguments=False,
            start_parameter_services=False,
            enable_rosout=False,
        )
        # it warns of each answer that comes after its goal was given up
        self._node.get_logger().get_child('action_client').set_level(LoggingSeverity.ERROR)
        self._executor = RobustExecutor(context=runtime.context)
        self._executor.add_node(self._node)
        self._timer = self._node.create_timer(POLL_PERIOD_S, self._poll)
        self._timer.cancel()
        self._acts: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._clients: dict[str, ActionClient] = {}
        self._in_flight: dict[str, GoalRequest] = {}
        self._is_over = False
        runtime.thread('goals', self._run, partial(self._hand_over, self._end))

    def __len__(self) -> int:
        return len(self._in_flight)

    def send(self, request: GoalRequest) -> None:
        """Send a goal to its server, once that is found."""
        self._hand_over(partial(self._begin, request))

    def withdraw(self, key: str) -> ExecutorFuture:
        """Return, for coroutines of the host's executor, whether there will be no answer."""
        outcome = ExecutorFuture(self._host.executor)
        self._hand_over(partial(self._withdraw, key, outcome))
        return outcome

    def give_up(self) -> None:
        """End all goals, since the router goes away."""
        self._hand_over(self._give_up)

    def close_clients(self) -> None:
        """Close what was opened for goals; none is under way."""
        self._hand_over(self._close_clients)

    def _hand_over(self, act: Callable[[], None]) -> None:
        """Have the thread do it, in order; tasks of rclpy alone are done in any."""
        self._acts.put(act)
        self._executor.create_task(self._act)

    def _act(self) -> None:
        self._acts.get()()

    def _run(self) -> None:
        while not self._is_over:
            self._executor.spin_once()
        self._close_clients()
        # the executor is not shut down: it would raise in who hands something over too late
        self._executor.remove_node(self._node)
        self._node.destroy_node()

    def _end(self) -> None:
        self._is_over = True

    def _begin(self, request: GoalRequest) -> None:
        self._in_flight[request.key] = request
        self._timer.reset()
        self._send(request)

    def _send(self, request: GoalRequest) -> None:
        """Send it, unless it was sent or nobody is found yet who takes it."""
        if request.server not in self._clients:
            name = f'{request.server}/predict_chunk'
            self._clients[request.server] = ActionClient(
                self._node, PredictChunk, name, **qos.ACTION_SERVICES
            )
        client = self._clients[request.server]
        if request.sent is None and client.server_is_ready():
            request.sent = client.send_goal_async(request.goal)
            request.sent.add_done_callback(partial(self._on_accepted, request))

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
            self._forward_cancel(request)

    def _on_result(self, request: GoalRequest, result: Future) -> None:
        if request.key not in self._in_flight:
            return
        status, chunk = result.result().status, result.result().result.chunk
        if status == GoalStatus.STATUS_CANCELED and request.cancel_waiters:
            self._finish(request, is_withdrawn=True)
        elif status == GoalStatus.STATUS_SUCCEEDED or chunk.status:
            self._finish(request)
            request.answer(chunk)
        else:
            text = (
                f'{request.server} ended the goal without a chunk (status {status}); {RETRY_HINT}'
            )
            self._fail(request, Status.NO_SESSION, text)

    def _withdraw(self, key: str, outcome: ExecutorFuture) -> None:
        request = self._in_flight.get(key)
        if request is None:
            self._resolve([outcome], is_withdrawn=False)
            return
        request.cancel_waiters.append(outcome)
        if request.sent is None:
            self._finish(request, is_withdrawn=True)
        elif request.handle:
            self._forward_cancel(request)

    def _forward_cancel(self, request: GoalRequest) -> None:
        """The server has the last word: what its policy works on is answered instead."""
        reply = request.handle.cancel_goal_async()
        reply.add_done_callback(partial(self._on_cancel, request))

    def _on_cancel(self, request: GoalRequest, reply: Future) -> None:
        if request.key not in self._in_flight:
            return
        if reply.result().goals_canceling:
            self._finish(request, is_withdrawn=True)
        else:
            self._resolve(request.cancel_waiters, is_withdrawn=False)
            request.cancel_waiters.clear()

    def _poll(self) -> None:
        """Find servers that were not there yet, end what takes too long."""
        for request in list(self._in_flight.values()):
            if request.is_overdue:
                self._fail(request, Status.TOO_LATE, f'{request.lateness}; {RETRY_HINT}')
            else:
                self._send(request)

    def _give_up(self) -> None:
        for request in list(self._in_flight.values()):
            self._fail(request, Status.DRAINING, SHUTDOWN_TEXT)

    def _fail(self, request: GoalRequest, status: Status, text: str) -> None:
        if request.handle:
            # a server that is only slow need not do it any more; what it says to that is no matter
            request.handle.cancel_goal_async().cancel()
        self._finish(request)
        request.fail(status, text)

    def _finish(self, request: GoalRequest, *, is_withdrawn: bool = False) -> None:
        """It is on its way no more, and its client keeps nothing of it."""
        del self._in_flight[request.key]
        if not self._in_flight:
            self._timer.cancel()
        for future in filter(None, (request.sent, request.result)):
            future.cancel()
        self._resolve(request.cancel_waiters, is_withdrawn=is_withdrawn)

    def _resolve(self, cancel_waiters: list[ExecutorFuture], *, is_withdrawn: bool) -> None:
        for outcome in cancel_waiters:
            outcome.set_result(is_withdrawn)

    def _close_clients(self) -> None:
        for client in self._clients.values():
            client.destroy()
        self._clients.clear()
