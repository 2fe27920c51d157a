# SPDX-License-Identifier: Apache-2.0
"""
Serve the action PredictChunk: forward each goal to a policy server and relay its chunk.

The executor accepts goals and selects their servers; the thread of GoalDispatcher sends them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
import time
from typing import TYPE_CHECKING

from rclpy.node import Node
from rclpy.serialization import deserialize_message

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Envelope, read_envelope
from lerobot_serve.contract.schema import Status
from lerobot_serve.ros.contract.predict_chunk_action import OnReply, PredictChunkAction
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.router.api.goal_router import GoalRoute, GoalRouter
from lerobot_serve.router.ros.goal_dispatcher import GoalDispatcher, GoalRequest, RETRY_HINT
from lerobot_serve_interfaces.action import PredictChunk
from lerobot_serve_interfaces.msg import ActionChunk, Observation

if TYPE_CHECKING:
    from lerobot_serve.zenoh.link import ZenohLink

# from the arrival of a goal to its reply
GOAL_TIMEOUT_S = 10.0
# drain: time limits for pending replies, then for the failures of the other goals
DRAIN_S = 0.3
FAILURE_REPLY_S = 0.5
UNANSWERED = 'goal_unanswered'
OnFailure = Callable[[Status, str], None]


class PredictChunkProxy:
    """
    `goals` selects the servers, `drop` counts failures. The action exists as long as the node; a
    goal without a server fails with the reason.
    """

    def __init__(
        self,
        node: Node,
        runtime: NodeRuntime,
        goals: GoalRouter,
        drop: Callable[[str], None],
        *,
        limit_s: float = GOAL_TIMEOUT_S,
        link: ZenohLink | None = None,
    ) -> None:
        """`link` reaches the servers over Zenoh."""
        self._goals, self._drop, self._limit_s = goals, drop, limit_s
        self._numbers = count(1)
        self._dispatcher = GoalDispatcher(node, runtime, link)
        self._action = PredictChunkAction(
            node, self._predict, self._dispatcher.cancel, self._dispatcher.__len__
        )

    def drain(self) -> None:
        """
        Wait DRAIN_S for replies, then fail the goals in flight. `goals` must reject new ones by
        now; the executor runs meanwhile.
        """
        if not self._action.wait_until_replied(DRAIN_S):
            self._dispatcher.fail_all()
            self._action.wait_until_replied(FAILURE_REPLY_S)
        self._dispatcher.close_clients()

    def _predict(self, raw: bytes, reply: OnReply) -> str:
        """Start a goal and return its key. Executor thread."""
        key, start = f'goal#{next(self._numbers)}', read_envelope(raw)
        choice = self._goals.choose(start, len(raw))
        fail = partial(self._fail, start, choice.slot, reply)
        if not choice.server:
            fail(choice.status, choice.text, choice.retry_after_s)
            return key
        goal = PredictChunk.Goal(observation=deserialize_message(raw, Observation))
        on_reply, now_s = partial(self._relay, choice, reply, fail), time.monotonic()
        self._dispatcher.send(
            GoalRequest(
                key,
                choice.server,
                goal,
                reply=on_reply,
                fail=fail,
                started_s=now_s,
                limit_s=self._limit_s,
            )
        )
        return key

    def _relay(
        self, choice: GoalRoute, reply: OnReply, fail: OnFailure, chunk: ActionChunk
    ) -> None:
        """Relay a chunk, unless its policy is not eligible any more. Thread `goals`."""
        self._goals.charge(chunk.client_id, chunk.inference_ms)
        is_ok = chunk.status == ActionChunk.OK
        if is_ok and (why := self._goals.refusal(choice.slot, chunk.policy)):
            fail(Status.NO_SLOT, f'{why}; {RETRY_HINT}')
            return
        chunk.header.flags |= choice.flags
        reply(chunk)

    def _fail(
        self,
        start: Envelope,
        slot: str,
        reply: OnReply,
        status: Status,
        text: str,
        retry_after_s: float = 0.0,
    ) -> None:
        # what a quota refuses is counted as that
        if status != Status.QUOTA:
            self._drop(UNANSWERED)
        header, client_id, episode_id = start
        reply(
            Chunk(
                header.for_reply(0),
                client_id,
                episode_id,
                status=status,
                status_text=encodable_text(text),
                slot=slot,
                extensions=(wire_chunk.retry_after(retry_after_s),) if retry_after_s else (),
            )
        )
