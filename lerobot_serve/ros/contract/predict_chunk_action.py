# SPDX-License-Identifier: Apache-2.0
"""
Offer the action PredictChunk: one observation in, one chunk out, for clients that do not stream.

The executor accepts goals; a coroutine awaits each reply, so that no thread blocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from itertools import count
import math
import threading
import time

from rclpy.action import CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.schema import MsgType, Status
from lerobot_serve.ros import qos
from lerobot_serve.ros.node.steady_clock import SteadyClockActionServer
from lerobot_serve.ros.process.executor import ExecutorFuture
from lerobot_serve_interfaces.action import PredictChunk
from lerobot_serve_interfaces.msg import ActionChunk
from lerobot_serve_interfaces.msg import Observation as ObservationMessage

OnReply = Callable[[Chunk | ActionChunk], None]
Submit = Callable[[bytes, OnReply], str]
Cancel = Callable[[str], bool | Awaitable[bool]]
RESULT_KEPT_S = 30
RESULT_DELIVERY_S = 0.5
MAX_TURNS = 1000


class PredictChunkAction:
    """
    `submit` queues a request and returns its key; `cancel` removes a request that still waits, and
    its result may be awaitable; `queue_position` returns the number of earlier requests. Any
    thread may deliver the reply; a cancelled request has none.
    """

    def __init__(
        self, node: Node, submit: Submit, cancel: Cancel, queue_position: Callable[[], int]
    ) -> None:
        self._node = node
        self._submit, self._cancel, self._queue_position = submit, cancel, queue_position
        self._in_flight: dict[bytes, tuple[str, ExecutorFuture]] = {}
        self._replied = threading.Condition()
        self._last_reply_s = -math.inf
        self._numbers = count(1)
        self._server = SteadyClockActionServer(
            node,
            PredictChunk,
            '~/predict_chunk',
            self._execute,
            callback_group=ReentrantCallbackGroup(),
            goal_callback=lambda _: GoalResponse.ACCEPT,
            cancel_callback=self._on_cancel,
            result_timeout=RESULT_KEPT_S,
            **qos.ACTION_SERVICES,
        )

    def wait_until_replied(self, timeout_s: float) -> bool:
        """Wait until every goal has its result; return False after the timeout. Any thread."""
        with self._replied:
            is_done = self._replied.wait_for(lambda: not self._in_flight, timeout_s)
            arrived_s = self._last_reply_s + RESULT_DELIVERY_S
        # rclpy does not report the arrival of a result, which would be lost at the end of the
        # process
        time.sleep(max(0.0, arrived_s - time.monotonic()) if is_done else 0)
        return is_done

    async def _execute(self, goal: ServerGoalHandle) -> PredictChunk.Result:
        reply = ExecutorFuture(self._node.executor)
        name = bytes(goal.goal_id.uuid)
        goal.publish_feedback(PredictChunk.Feedback(queue_position=self._queue_position()))
        try:
            raw = observation_bytes(goal.request, next(self._numbers))
        except (Malformed, Unencodable) as error:
            self._node.get_logger().warning(f'PredictChunk goal rejected: {error}')
            goal.abort()
            return rejected_result(str(error))
        self._in_flight[name] = self._submit(raw, reply.set_result), reply
        try:
            chunk = await reply
            if chunk is None:
                await wait_for_executor(lambda: goal.is_cancel_requested)
            return finish_goal(goal, chunk)
        finally:
            # also after an error: a drain would wait for this goal
            with self._replied:
                del self._in_flight[name]
                self._last_reply_s = time.monotonic()
                self._replied.notify_all()

    async def _on_cancel(self, goal: ServerGoalHandle) -> CancelResponse:
        """Reject the cancel request when the policy has begun; the goal gets its chunk."""
        in_flight = self._in_flight.get(bytes(goal.goal_id.uuid))
        if in_flight is None:
            return CancelResponse.REJECT
        key, reply = in_flight
        is_cancelled = self._cancel(key)
        if not isinstance(is_cancelled, bool):
            is_cancelled = await is_cancelled
        if not is_cancelled:
            return CancelResponse.REJECT
        reply.set_result(None)
        return CancelResponse.ACCEPT


def observation_from_message(message: ObservationMessage) -> Observation:
    """Convert a typed message, with all checks of the data path. Raises Malformed."""
    return wire_observation.decode(serialize_message(message))


def message_from_chunk(chunk: Chunk) -> ActionChunk:
    """Return the typed message. Raises Unencodable."""
    return deserialize_message(wire_chunk.encode(chunk), ActionChunk)


def finish_goal(goal: ServerGoalHandle, chunk: Chunk | ActionChunk | None) -> PredictChunk.Result:
    """End a goal with the outcome of its reply; None: the goal is cancelled."""
    if chunk is None:
        goal.canceled()
        return PredictChunk.Result()
    if chunk.status:
        goal.abort()
    else:
        goal.succeed()
    message = message_from_chunk(chunk) if isinstance(chunk, Chunk) else chunk
    return PredictChunk.Result(chunk=message)


def observation_bytes(goal: PredictChunk.Goal, number: int) -> bytes:
    """Return the CDR bytes of the observation. Raises Malformed and Unencodable."""
    message = goal.observation
    message.header.msg_type = int(MsgType.OBSERVATION)
    message.header.schema_version = message.header.schema_version or SCHEMA_VERSION
    message.header.seq = message.header.seq or number
    return wire_observation.encode(observation_from_message(message))


def rejected_result(text: str) -> PredictChunk.Result:
    """Return the result of a goal with an invalid observation."""
    chunk = ActionChunk(status=int(Status.BAD_OBSERVATION), status_text=encodable_text(text))
    return PredictChunk.Result(chunk=chunk)


class ExecutorYield:
    """Awaiting it yields to the executor once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def wait_for_executor(condition: Callable[[], bool]) -> None:
    """
    Wait for another task of the executor: rclpy marks a goal as being cancelled only after the
    cancel callback has returned.
    """
    for _ in range(MAX_TURNS):
        if condition():
            return
        await ExecutorYield()
