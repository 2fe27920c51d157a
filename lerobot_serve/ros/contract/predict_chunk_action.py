"""
The action PredictChunk: one observation in, one chunk out, for callers that do not stream.

The executor takes goals; a coroutine waits for each answer, so that no thread does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
import math
import threading
import time

from rclpy.action import CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node

from lerobot_serve.ros import qos
from lerobot_serve.ros.node.executor_future import ExecutorFuture
from lerobot_serve.ros.node.steady_clock import SteadyClockActionServer
from lerobot_serve.ros.topics.image_messages import message_from_chunk, observation_from_message
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.errors import Malformed, Unencodable
from lerobot_serve.wire.schema import MsgType, SCHEMA_VERSION, Status, TEXT_LIMIT
from lerobot_serve_interfaces.action import PredictChunk
from lerobot_serve_interfaces.msg import ActionChunk

OnReply = Callable[[Chunk | ActionChunk], None]
Submit = Callable[[bytes, OnReply], str]
Cancel = Callable[[str], bool | Awaitable[bool]]
RESULT_KEPT_S = 30
RESULT_DELIVERY_S = 0.5
MAX_TURNS = 1000


class PredictChunkAction:
    """
    `predict` deposits a request and returns its key, `withdraw` takes one back that still waits,
    which may have to be awaited, `position` counts those in front. The answer may come from any
    thread; what was taken back has none.
    """

    def __init__(
        self, node: Node, predict: Submit, withdraw: Cancel, position: Callable[[], int]
    ) -> None:
        self._node = node
        self._predict, self._withdraw, self._position = predict, withdraw, position
        self._waiting: dict[bytes, tuple[str, ExecutorFuture]] = {}
        self._told = threading.Condition()
        self._last_reply_s = -math.inf
        self._numbers = count(1)
        self._server = SteadyClockActionServer(
            node,
            PredictChunk,
            '~/predict_chunk',
            self._execute,
            callback_group=ReentrantCallbackGroup(),
            goal_callback=lambda _: GoalResponse.ACCEPT,
            cancel_callback=self._cancel,
            result_timeout=RESULT_KEPT_S,
            **qos.ACTION_SERVICES,
        )

    def wait_until_replied(self, timeout_s: float) -> bool:
        """Wait until every goal has its result; False when that took too long. Any thread."""
        with self._told:
            told = self._told.wait_for(lambda: not self._waiting, timeout_s)
            arrived_s = self._last_reply_s + RESULT_DELIVERY_S
        # nobody says when a result has arrived, and it would be lost with this process
        time.sleep(max(0.0, arrived_s - time.monotonic()) if told else 0)
        return told

    async def _execute(self, goal: ServerGoalHandle) -> PredictChunk.Result:
        answer = ExecutorFuture(self._node.executor)
        name = bytes(goal.goal_id.uuid)
        goal.publish_feedback(PredictChunk.Feedback(queue_position=self._position()))
        try:
            raw = observation_bytes(goal.request, next(self._numbers))
        except (Malformed, Unencodable) as error:
            self._node.get_logger().warning(f'PredictChunk refused: {error}')
            goal.abort()
            return rejected_result(str(error))
        self._waiting[name] = self._predict(raw, answer.set_result), answer
        chunk = await answer
        if chunk is None:
            await wait_for_executor(lambda: goal.is_cancel_requested)
        result = finish_goal(goal, chunk)
        with self._told:
            del self._waiting[name]
            self._last_reply_s = time.monotonic()
            self._told.notify_all()
        return result

    async def _cancel(self, goal: ServerGoalHandle) -> CancelResponse:
        """What the policy works on already is answered instead."""
        key, answer = self._waiting.get(bytes(goal.goal_id.uuid), ('', None))
        withdrawn = self._withdraw(key) if answer else False
        if not isinstance(withdrawn, bool):
            withdrawn = await withdrawn
        if not withdrawn:
            return CancelResponse.REJECT
        answer.set_result(None)
        return CancelResponse.ACCEPT


def finish_goal(goal: ServerGoalHandle, chunk: Chunk | ActionChunk | None) -> PredictChunk.Result:
    """End a goal as its answer says; None is the answer of one that was cancelled."""
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
    """Return the observation as the data path has it. Raises Malformed and Unencodable."""
    message = goal.observation
    message.header.msg_type = int(MsgType.OBSERVATION)
    message.header.schema_version = message.header.schema_version or SCHEMA_VERSION
    message.header.seq = message.header.seq or number
    return wire_observation.encode(observation_from_message(message))


def rejected_result(text: str) -> PredictChunk.Result:
    """Return the result of a goal that is no observation."""
    chunk = ActionChunk(status=int(Status.BAD_OBSERVATION), status_text=text[:TEXT_LIMIT])
    return PredictChunk.Result(chunk=chunk)


class ExecutorYield:
    """Awaiting it lets the executor do something else once."""

    def __await__(self):
        yield


async def wait_for_executor(condition: Callable[[], bool]) -> None:
    """
    Wait for what another task of the executor does at once: rclpy marks a goal as being cancelled
    only after the cancel callback has returned.
    """
    for _ in range(MAX_TURNS):
        if condition():
            return
        await ExecutorYield()
