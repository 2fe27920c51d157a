"""
One control step: ask the authority who commands, take what is played or what the ladder says, and
bring it through the cage.

Plain and without a clock. The tick thread calls `step`, any thread the orders below it, which the
next step follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.result import CageResult, LastCommand, Verdict
from lerobot_serve.cage.start_position import StartPosition
from lerobot_serve.edge.control.authority import (
    ActionSupply,
    AllowedMotion,
    AuthorityInputs,
    ControlAuthority,
    grant_motion,
    JointMotion,
    MotionGrant,
    OperatingConditions,
    TeardownState,
)
from lerobot_serve.edge.control.clamp_alarm import ClampAlarm
from lerobot_serve.edge.control.executed_log import ExecutedActionLog
from lerobot_serve.edge.control.manual_move import ManualMoveDetector
from lerobot_serve.edge.control.playback import ActionPlayback
from lerobot_serve.edge.control.pose_tracker import PoseTracker
from lerobot_serve.edge.control.rate_limiter import CommandRateLimiter
from lerobot_serve.edge.control.step import ExecutedStep, RobotState, StepTiming
from lerobot_serve.edge.fallback.ladder import Ladder, LadderDecision
from lerobot_serve.edge.fallback.rungs import RungKind
from lerobot_serve.edge.queue.action_queue import ActionQueue
from lerobot_serve.edge.queue.interpolation import Interpolator
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.wire import execution_report as wire_executed

DEFAULT_CONDITIONS = OperatingConditions()
# whose motion takes joints back that stand outside their limits or too far ahead; in any other
# state that would be a motion that began by itself
RETURNING_MOTIONS = (AllowedMotion.PLAY, AllowedMotion.FALL_BACK, AllowedMotion.TEARDOWN)
# what begins from silence
STARTING_MOTIONS = (AllowedMotion.PLAY, AllowedMotion.INTERLOCK)


class Controller:
    """
    Owns the last command. `dry` is called when there is nothing left to play. `releases`: a robot
    that is paused commands nothing.
    """

    def __init__(
        self,
        queue: ActionQueue,
        ladder: Ladder,
        cage: Cage,
        interpolator: Interpolator,
        journey: ExecutedActionLog,
        start: StartPosition,
        timing: StepTiming,
        *,
        dry: Callable[[], None],
        releases: bool = False,
        alarm: ClampAlarm | None = None,
    ) -> None:
        self._ladder, self._cage, self._journey = ladder, cage, journey
        self.alarm = alarm or ClampAlarm((), window_steps=0, window_s=0.0)
        self._playing = ActionPlayback(queue, ladder, interpolator, timing.max_action_age_ns)
        self._where = PoseTracker(start, ManualMoveDetector(cage.limits), timing.max_blind_ns)
        self._pacing, self._timing = CommandRateLimiter(timing.step_ns), timing
        self._dry, self._is_silent_while_paused = dry, releases
        self._orders: list[Callable[[], None]] = []
        self._last: LastCommand | None = None
        self._is_first_step = self._queue_empty_reported = True
        self._was_playing = False
        self.grant = MotionGrant(ControlAuthority.LADDER, AllowedMotion.NONE, '')
        self.rung = RungKind.PLAY
        self.rung_reason = ''
        # why it does not begin though it may, empty when it does
        self.start_blocked_by = ''
        self.drops: Counter[str] = self._playing.drops
        self.actions_executed = self.fallbacks = self.cage_trips = self.stalls = 0
        # by number: of commands that were sent, and of everything that was judged
        self.commands, self.verdicts = [0] * len(RungKind), [0] * len(Verdict)
        self.ticks_skipped = self.age_ns = self.oldest_age_ns = 0

    # any thread; followed at the next step

    def clear_stop(self) -> None:
        """Lift a stop by service: what led to it is over."""
        self._orders.append(self._ladder.clear_stop)

    def reset_cage(self) -> None:
        """Let a latched cage judge again."""
        self._orders += [self._cage.reset, self.alarm.reset]

    @property
    def latched(self) -> bool:
        return self._cage.latched

    @property
    def latch_reason(self) -> str:
        """Why the cage is latched, empty when it is not."""
        return self._cage.latch_reason

    @property
    def stopped(self) -> bool:
        """Whether the stop service was called, and no reset lifted that."""
        return self._ladder.stopped

    @property
    def teardown(self) -> TeardownState:
        return self._ladder.teardown

    @property
    def supply(self) -> ActionSupply:
        return self._ladder.supply

    # request thread

    def report(self) -> wire_executed.ExecutionReport:
        """Return what was commanded: counts since start, rows since the last report."""
        runs, oldest_age_ns = self._journey.take()
        return wire_executed.ExecutionReport(
            self.actions_executed,
            self.fallbacks,
            self.cage_trips,
            self.stalls,
            self._journey.dropped_rows,
            oldest_age_ns / 1e9,
            runs,
        )

    # tick thread

    def step(
        self,
        now_ns: int,
        sense: Callable[[], RobotState],
        orders: OperatingConditions = DEFAULT_CONDITIONS,
    ) -> tuple[ExecutedStep | None, bool]:
        """
        Return the command of this step, None when there is nothing to command, and whether the
        stop service is to be called.
        """
        while self._orders:
            self._orders.pop(0)()
        if not self._pacing.is_due(now_ns):
            self.ticks_skipped += 1
            return None, False
        sensed = sense()
        moves = self._joints() is JointMotion.MOVING
        self._where.see(sensed, now_ns, self._last, plays=self._was_playing, moves=moves)
        if orders.state is not ConnectionState.DEAD:
            self._ladder.revive()
        if self._check_manual_move():
            # silent for a step: the next one holds where the robot now is
            return None, False
        decision = self._decide(now_ns, sensed, orders)
        self.rung, self.rung_reason = decision.kind, decision.reason
        self._record_playback(decision)
        if decision.wanted is None:
            self._stop_commanding()
            return None, decision.call_stop_service
        return self._judge(decision, now_ns, sensed), decision.call_stop_service

    def rest(self) -> np.ndarray | None:
        """Return what to command last of all, None for nothing; the tick thread as it ends."""
        return self._cage.rest(self._last)

    def _decide(
        self, now_ns: int, sensed: RobotState, orders: OperatingConditions
    ) -> LadderDecision:
        self._playing.follow_queue()
        if self._playing.cleared:
            # no teardown returns to where an earlier episode began
            self._is_first_step, self._ladder.initial_pose = True, None
        joints = self._joints()
        given = AuthorityInputs(
            orders,
            self._cage.latched,
            self._ladder.stopped,
            self._cage.force(sensed.state),
            self._is_silent_while_paused,
            self._ladder.teardown,
            joints,
            ActionSupply.FRESH,
        )
        grant, wanted, self.start_blocked_by = grant_motion(given), None, ''
        if grant.commander is ControlAuthority.POLICY:
            wanted = self._next(now_ns)
        if wanted is None and grant.commander is not ControlAuthority.PERSON:
            grant = grant_motion(given._replace(supply=self._ladder.supply))
        self.grant = grant
        if self._last is None and grant.allowed in STARTING_MOTIONS:
            self.start_blocked_by, self._last = self._where.start_blocked_by(), self._where.begin()
        return self._ladder.step(
            grant,
            wanted,
            self._playing.rows_left(),
            now_ns,
            self._last,
            cleared=self._playing.cleared,
        )

    def _next(self, now_ns: int) -> np.ndarray | None:
        """Return what is played, None for nothing or while it is not known where to begin from."""
        why_not = '' if self._last else self._where.start_blocked_by()
        if not why_not:
            return self._playing.next(now_ns)
        self.start_blocked_by = why_not if self._playing.waits(now_ns) else ''
        return None

    def _joints(self) -> JointMotion:
        if self._last is None:
            return JointMotion.SILENT
        return JointMotion.MOVING if self._cage.limits.moves(self._last) else JointMotion.AT_REST

    def _check_manual_move(self) -> bool:
        """Return whether a robot that held or was lost stands elsewhere; it begins from there."""
        holds = self.rung is RungKind.HOLD and self._joints() is JointMotion.AT_REST
        if not self._where.was_moved(self._last, holds=holds):
            return False
        self._last = self._where.begin()
        if self._last is None:
            self._stop_commanding()
        return True

    def _stop_commanding(self) -> None:
        """Command nothing: the next command is bounded from where the robot is by then."""
        self._last = None
        self._ladder.forget()

    def _record_playback(self, decision: LadderDecision) -> None:
        playing = decision.kind is RungKind.PLAY and decision.wanted is not None
        if not playing:
            # nor is what was taken and not played where the next steps begin
            self._playing.forget()
            self._journey.pause()
        diverted = self._is_interrupted()
        if self._was_playing and not playing:
            # what a person cleared or stopped is no stall
            self.stalls += not (self._playing.cleared or diverted)
        if playing:
            self._queue_empty_reported = False
        elif not (self._queue_empty_reported or diverted or self.start_blocked_by):
            self._queue_empty_reported = True
            self._dry()
        self._was_playing = playing

    def _is_interrupted(self) -> bool:
        return self.grant.cause not in ('play', 'nothing_to_play', 'nothing_played_yet')

    def _judge(self, decision: LadderDecision, now_ns: int, sensed: RobotState) -> ExecutedStep:
        last = self._last
        judgement = self._cage.judge(
            decision.wanted,
            last,
            measured=sensed.measured,
            state=sensed.state,
            allow_return=self.grant.allowed in RETURNING_MOTIONS,
            blind=self._where.blind(now_ns),
        )
        self.verdicts[judgement.verdict] += 1
        self.cage_trips += judgement.verdict != Verdict.PASS
        planned = self._playing.planned if decision.kind is RungKind.PLAY else None
        age_ns = self._playing.age_ns(now_ns) if planned else 0
        if judgement.command is None:
            self._stop_commanding()
        else:
            self._last = last.after(judgement.command, self._timing.step_ns / 1e9)
            self.actions_executed += 1
            self.commands[decision.kind] += 1
            # what a person stopped is not what the policy failed to say
            self.fallbacks += planned is None and not self._is_interrupted()
        if planned:
            self._record_age(age_ns)
            self._journey.note(planned, judgement.command, age_ns)
            self._record_start_pose(last)
            self._watch_clamping(decision, judgement)
        return ExecutedStep(planned, decision, judgement, age_ns)

    def _record_age(self, age_ns: int) -> None:
        self.age_ns = age_ns
        self.oldest_age_ns = max(self.oldest_age_ns, age_ns)

    def _record_start_pose(self, before: LastCommand) -> None:
        """Note where the robot stood as the episode began, for a teardown that returns there."""
        if self._is_first_step:
            self._is_first_step = False
            pose, limits = self._where.pose(before.position), self._cage.limits
            self._ladder.initial_pose = np.clip(pose, limits.low, limits.high)

    def _watch_clamping(self, decision: LadderDecision, judgement: CageResult) -> None:
        """Latch the cage when most of what the policy wants is outside the position limits."""
        if judgement.verdict in (Verdict.PASS, Verdict.CLAMPED):
            alarm = self.alarm.note(decision.wanted, judgement.command)
            if alarm and alarm.latches:
                self._cage.latch(alarm.text)
