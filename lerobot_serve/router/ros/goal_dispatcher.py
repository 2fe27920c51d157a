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
SHUTDOWN_TEXT = 'the router is going away; send the goal to another server'


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
        self._timer = self._node.create_timer(POLL_PERIOD_S, self._look)
        self._timer.cancel()
        self._acts: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._clients: dict[str, ActionClient] = {}
        self._under_way: dict[str, GoalRequest] = {}
        self._is_over = False
        runtime.thread('goals', self._run, partial(self._hand_over, self._end))

    def __len__(self) -> int:
        return len(self._under_way)

    def send(self, errand: GoalRequest) -> None:
        """Send a goal to its server, once that is found."""
        self._hand_over(partial(self._begin, errand))

    def withdraw(self, key: str) -> ExecutorFuture:
        """Return, for coroutines of the host's executor, whether there will be no answer."""
        told = ExecutorFuture(self._host.executor)
        self._hand_over(partial(self._withdraw, key, told))
        return told

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

    def _begin(self, errand: GoalRequest) -> None:
        self._under_way[errand.key] = errand
        self._timer.reset()
        self._send(errand)

    def _send(self, errand: GoalRequest) -> None:
        """Send it, unless it was sent or nobody is found yet who takes it."""
        if errand.server not in self._clients:
            name = f'{errand.server}/predict_chunk'
            self._clients[errand.server] = ActionClient(
                self._node, PredictChunk, name, **qos.ACTION_SERVICES
            )
        client = self._clients[errand.server]
        if errand.sent is None and client.server_is_ready():
            errand.sent = client.send_goal_async(errand.goal)
            errand.sent.add_done_callback(partial(self._on_accepted, errand))

    def _on_accepted(self, errand: GoalRequest, sent: Future) -> None:
        if errand.key not in self._under_way:
            return
        handle = sent.result()
        if not handle.accepted:
            text = f'{errand.server} refused the goal; {RETRY_HINT}'
            self._fail(errand, Status.NO_SESSION, text)
            return
        errand.handle, errand.result = handle, handle.get_result_async()
        errand.result.add_done_callback(partial(self._on_result, errand))
        if errand.cancel_waiters:
            self._forward_cancel(errand)

    def _on_result(self, errand: GoalRequest, result: Future) -> None:
        if errand.key not in self._under_way:
            return
        status, chunk = result.result().status, result.result().result.chunk
        if status == GoalStatus.STATUS_CANCELED and errand.cancel_waiters:
            self._finish(errand, is_withdrawn=True)
        elif status == GoalStatus.STATUS_SUCCEEDED or chunk.status:
            self._finish(errand)
            errand.answer(chunk)
        else:
            text = (
                f'{errand.server} ended the goal without a chunk (status {status}); {RETRY_HINT}'
            )
            self._fail(errand, Status.NO_SESSION, text)

    def _withdraw(self, key: str, told: ExecutorFuture) -> None:
        errand = self._under_way.get(key)
        if errand is None:
            self._tell([told], is_withdrawn=False)
            return
        errand.cancel_waiters.append(told)
        if errand.sent is None:
            self._finish(errand, is_withdrawn=True)
        elif errand.handle:
            self._forward_cancel(errand)

    def _forward_cancel(self, errand: GoalRequest) -> None:
        """The server has the last word: what its policy works on is answered instead."""
        said = errand.handle.cancel_goal_async()
        said.add_done_callback(partial(self._on_cancel, errand))

    def _on_cancel(self, errand: GoalRequest, said: Future) -> None:
        if errand.key not in self._under_way:
            return
        if said.result().goals_canceling:
            self._finish(errand, is_withdrawn=True)
        else:
            self._tell(errand.cancel_waiters, is_withdrawn=False)
            errand.cancel_waiters.clear()

    def _look(self) -> None:
        """Find servers that were not there yet, end what takes too long."""
        for errand in list(self._under_way.values()):
            if errand.is_overdue:
                self._fail(errand, Status.TOO_LATE, f'{errand.lateness}; {RETRY_HINT}')
            else:
                self._send(errand)

    def _give_up(self) -> None:
        for errand in list(self._under_way.values()):
            self._fail(errand, Status.DRAINING, SHUTDOWN_TEXT)

    def _fail(self, errand: GoalRequest, status: Status, text: str) -> None:
        if errand.handle:
            # a server that is only slow need not do it any more; what it says to that is no matter
            errand.handle.cancel_goal_async().cancel()
        self._finish(errand)
        errand.fail(status, text)

    def _finish(self, errand: GoalRequest, *, is_withdrawn: bool = False) -> None:
        """It is on its way no more, and its client keeps nothing of it."""
        del self._under_way[errand.key]
        if not self._under_way:
            self._timer.cancel()
        for future in filter(None, (errand.sent, errand.result)):
            future.cancel()
        self._tell(errand.cancel_waiters, is_withdrawn=is_withdrawn)

    def _tell(self, cancel_waiters: list[ExecutorFuture], *, is_withdrawn: bool) -> None:
        for told in cancel_waiters:
            told.set_result(is_withdrawn)

    def _close_clients(self) -> None:
        for client in self._clients.values():
            client.destroy()
        self._clients.clear()
