# SPDX-License-Identifier: Apache-2.0
"""
Action server of RunEpisode: runs one episode, with feedback and immediate cancel.

The executor accepts goals and polls the run while there is one; a coroutine waits for its end.
"""

from __future__ import annotations

from rclpy.action import CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node

from lerobot_serve.edge.episode_runner import EpisodeRunner
from lerobot_serve.ros.contract.predict_chunk_action import wait_for_executor
from lerobot_serve.ros.node.steady_clock import SteadyClockActionServer
from lerobot_serve.ros.process.executor import ExecutorFuture
from lerobot_serve_interfaces.action import RunEpisode

REFUSED = 7
SUCCEEDED, CANCELLED = 5, 2
RESULT_KEPT_S = 60
# a run ends so long after its outcome, its time or a stop at the latest
POLL_PERIOD_S = 0.05


class RunEpisodeAction:
    """A timer of its own polls the run; the node publishes feedback."""

    def __init__(self, node: Node, runner: EpisodeRunner) -> None:
        self._node, self._runner = node, runner
        self._running: tuple[ServerGoalHandle, ExecutorFuture] | None = None
        self._timer = node.create_timer(POLL_PERIOD_S, self.poll, autostart=False)
        self._server = SteadyClockActionServer(
            node,
            RunEpisode,
            '~/run_episode',
            self._execute,
            callback_group=ReentrantCallbackGroup(),
            goal_callback=lambda _: GoalResponse.ACCEPT,
            cancel_callback=self._cancel,
            result_timeout=RESULT_KEPT_S,
        )

    async def _execute(self, goal: ServerGoalHandle) -> RunEpisode.Result:
        if goal.is_cancel_requested:
            # cancelled before the start: the robot must not move
            goal.canceled()
            return RunEpisode.Result(outcome=CANCELLED, text='cancelled before the start')
        why_not = self._runner.refusal(goal.request)
        if why_not:
            goal.abort()
            return RunEpisode.Result(outcome=REFUSED, text=why_not)
        end = ExecutorFuture(self._node.executor)
        self._runner.begin(goal.request)
        self._running = goal, end
        self._timer.reset()
        result = await end
        if result.outcome == CANCELLED:
            await wait_for_executor(lambda: goal.is_cancel_requested)
            goal.canceled()
        elif result.outcome == SUCCEEDED:
            goal.succeed()
        else:
            goal.abort()
        return result

    def _cancel(self, goal: ServerGoalHandle) -> CancelResponse:
        # cancelling a goal that has not started must not end the running one
        if self._running and self._running[0] is goal:
            self._runner.cancel()
            self.poll()
        return CancelResponse.ACCEPT

    def poll(self) -> None:
        """
        Set the result once the run has ended. Also called before an operator clears what ends a
        run, and for each outcome.
        """
        if self._running is None:
            self._timer.cancel()
            return
        if result := self._runner.poll():
            _, end = self._running
            self._running = None
            end.set_result(result)

    def publish_feedback(self) -> None:
        if self._running:
            self._running[0].publish_feedback(self._runner.feedback())
