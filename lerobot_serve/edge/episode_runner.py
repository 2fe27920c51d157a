# SPDX-License-Identifier: Apache-2.0
"""
Runs episodes for the action RunEpisode, one at a time. The executor thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import secrets

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.limits import ID_LIMIT, TASK_LIMIT
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.operator_control import OperatorControl
from lerobot_serve.edge.episode_outcomes import REPORTED_OUTCOMES, RunOutcome
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve_interfaces.action import RunEpisode
from lerobot_serve_interfaces.msg import EpisodeOutcome


@dataclass(slots=True)
class ActiveEpisode:
    """One run: counters at its start, and its outcome once known."""

    started_ns: int
    max_duration_s: float
    episode_id: str
    actions_executed: int
    stalls: int
    cage_trips: int
    chunks_accepted: int
    result: tuple[RunOutcome, str] | None = None

    def end(self, outcome: RunOutcome, text: str) -> None:
        """Set the outcome; the first one counts. Any thread."""
        if self.result is None:
            self.result = outcome, text

    def elapsed_s(self, now_ns: int) -> float:
        return (now_ns - self.started_ns) / 1e9

    def check(
        self, now_ns: int, *, state: ConnectionState, reason: str, latched: bool, stopped: bool
    ) -> tuple[RunOutcome, str] | None:
        """Return the outcome, None while it runs."""
        if state == ConnectionState.DEAD:
            self.end(RunOutcome.DEAD, reason)
        if latched:
            self.end(RunOutcome.STOPPED, 'Safety cage latched')
        if stopped:
            self.end(RunOutcome.STOPPED, 'Stop service called')
        if self.max_duration_s and self.elapsed_s(now_ns) >= self.max_duration_s:
            self.end(RunOutcome.TIMEOUT, f'{self.max_duration_s:g} s elapsed')
        return self.result


class EpisodeRunner:
    """Starts, watches and ends the current run."""

    def __init__(
        self,
        controller: Controller,
        operator: OperatorControl,
        requester: Requester,
        clock: Callable[[], int],
        task: Callable[[], str] = str,
        on_finished: Callable[[str, RunOutcome, str], None] = lambda *_: None,
    ) -> None:
        """
        `task` returns the task of a goal without one; `on_finished` receives id, outcome and text
        of each finished episode.
        """
        self._controller, self._operator, self._requester = controller, operator, requester
        self._clock, self._task, self._on_finished = clock, task, on_finished
        self.current: ActiveEpisode | None = None

    def refusal(self, goal: RunEpisode.Goal) -> str:
        """Return why the goal is rejected; empty if it is accepted."""
        if self.current:
            return 'another episode runs; cancel it first'
        if why_not := self._operator.start_refusal():
            return why_not
        if len(goal.task.encode()) > TASK_LIMIT or len(goal.episode_id.encode()) > ID_LIMIT:
            return f'task must have at most {TASK_LIMIT} bytes and episode_id {ID_LIMIT}'
        if not goal.max_duration_s >= 0:
            return f'max_duration_s must be 0 (never) or above, got {goal.max_duration_s}'
        return ''

    def begin(self, goal: RunEpisode.Goal) -> ActiveEpisode:
        """Start an episode."""
        # a fresh id, so that an outcome of the previous episode cannot apply to this one
        name = goal.episode_id or f'run-{secrets.token_hex(8)}'
        self._operator.begin_episode(EpisodeRequest(goal.task or self._task(), name))
        controller = self._controller
        controller.oldest_age_ns = 0
        self.current = ActiveEpisode(
            self._clock(),
            goal.max_duration_s,
            name,
            controller.actions_executed,
            controller.stalls,
            controller.cage_trips,
            self._requester.pipeline.status.chunks_accepted,
        )
        return self.current

    def cancel(self) -> None:
        """Cancel the current run; the next control step applies it."""
        if self.current:
            self.current.end(RunOutcome.CANCELLED, 'cancelled')
            self._operator.end_episode()

    def stop(self, reason: str) -> None:
        """End the current run, before an operator begins another episode."""
        if self.current:
            self.current.end(RunOutcome.STOPPED, reason)

    def on_outcome(self, message: EpisodeOutcome) -> None:
        """Apply an EpisodeOutcome to the current run if it matches."""
        run = self.current
        if run and message.episode_id == run.episode_id and message.outcome in REPORTED_OUTCOMES:
            run.end(REPORTED_OUTCOMES[message.outcome].run, message.text)

    def poll(self) -> RunEpisode.Result | None:
        """Return the result of the current run once it has ended."""
        run, connection = self.current, self._requester.connection
        if run is None:
            return None
        ended = run.check(
            self._clock(),
            state=connection.state,
            reason=connection.reason,
            latched=self._controller.latched,
            stopped=self._controller.stopped,
        )
        if ended is None:
            return None
        self.current = None
        if ended[0] is not RunOutcome.DEAD:
            # the teardown after DEAD belongs to the episode
            self._operator.end_episode()
        self._on_finished(run.episode_id, *ended)
        return self._result(run, *ended)

    def _result(self, run: ActiveEpisode, outcome: RunOutcome, text: str) -> RunEpisode.Result:
        status, controller = self._requester.pipeline.status, self._controller
        # those of the last chunk, which may be of an episode before
        has_chunk = status.chunks_accepted > run.chunks_accepted
        return RunEpisode.Result(
            outcome=int(outcome),
            text=encodable_text(text, 256),
            episode_id=run.episode_id,
            slot=status.slot if has_chunk else '',
            policy=status.policy if has_chunk else '',
            duration_s=run.elapsed_s(self._clock()),
            actions_executed=controller.actions_executed - run.actions_executed,
            stalls=controller.stalls - run.stalls,
            cage_trips=controller.cage_trips - run.cage_trips,
            max_action_age_s=controller.oldest_age_ns / 1e9,
        )

    def feedback(self) -> RunEpisode.Feedback:
        """Return the progress of the current run."""
        controller, run = self._controller, self.current
        return RunEpisode.Feedback(
            state=int(self._requester.connection.state),
            rung=int(controller.rung),
            elapsed_s=run.elapsed_s(self._clock()) if run else 0.0,
            queue_remaining_s=self._requester.playable_s,
            action_age_s=controller.age_ns / 1e9,
            actions_executed=controller.actions_executed - run.actions_executed if run else 0,
        )
