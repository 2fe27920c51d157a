# SPDX-License-Identifier: Apache-2.0
"""
The control step: evaluate the control authority, take the next action or the ladder's command, and
pass it through the cage.

Plain and without a clock. The tick thread calls `step`; any thread may call the operator methods,
which the next step applies.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.description import CageResult, LastCommand, Verdict
from lerobot_serve.contract.data_path.execution_report import ExecutionReport, Halt
from lerobot_serve.edge.control.authority import (
    ActionSupply,
    AllowedMotion,
    AuthorityInputs,
    ControlAuthority,
    grant_motion,
    JointMotion,
    MotionGrant,
    OperatingConditions,
)
from lerobot_serve.edge.control.clamp_alarm import ClampAlarm
from lerobot_serve.edge.control.executed_log import ExecutedActionLog
from lerobot_serve.edge.control.ladder import Ladder, LadderDecision
from lerobot_serve.edge.control.playback import ActionPlayback
from lerobot_serve.edge.control.pose_tracker import PoseTracker
from lerobot_serve.edge.control.rungs import RungKind
from lerobot_serve.edge.control.step import CommandRateLimiter, ExecutedStep, StepSettings
from lerobot_serve.edge.inputs.state_reader import RobotState
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.takeover import PersonCommand

# a session without a chunk for this long leaves a robot without actions
STARVED_NS = 500_000_000
DEFAULT_CONDITIONS = OperatingConditions()
NO_PERSON = PersonCommand()
# motions that return joints outside their limits or too far ahead; in other states a return would
# be motion without a command
RETURNING_MOTIONS = (AllowedMotion.PLAY, AllowedMotion.FALL_BACK, AllowedMotion.TEARDOWN)
# motions that start from silence
STARTING_MOTIONS = (AllowedMotion.PLAY, AllowedMotion.INTERLOCK)


class Controller:
    """Owns the last command; `on_queue_empty` is called when the queue runs empty."""

    def __init__(
        self,
        playback: ActionPlayback,
        ladder: Ladder,
        cage: Cage,
        pose: PoseTracker,
        settings: StepSettings,
        *,
        alarm: ClampAlarm,
        on_queue_empty: Callable[[], object],
    ) -> None:
        self._playback, self._ladder, self._cage = playback, ladder, cage
        self._pose, self._settings, self.alarm = pose, settings, alarm
        self._executed = ExecutedActionLog(len(cage.limits.names))
        self._rate_limiter = CommandRateLimiter(settings.step_ns)
        self._on_queue_empty = on_queue_empty
        self._operator_calls: list[Callable[[], None]] = []
        # by an operator, and not yet applied
        self._clears_stop = self._clears_latch = False
        self._last: LastCommand | None = None
        # velocities that a silence left without a command to rest
        self._must_rest = False
        self._is_first_step = self._queue_empty_reported = True
        self._was_playing = self._is_queue_excused = False
        self._starved_since_ns: int | None = None
        # what the policy would do in this step, while a person has taken over
        self._policy_action: Float64Array | None = None
        # the newest message of each input in this step
        self._input_ids: tuple[int, ...] = ()
        # of the last step
        self._given = AuthorityInputs(is_silent_while_paused=settings.is_silent_while_paused)
        self.grant = MotionGrant(ControlAuthority.LADDER, AllowedMotion.NONE, '')
        self.rung = RungKind.POLICY
        self.rung_reason = ''
        # why granted motion does not start; empty if it does
        self.start_blocked_by = ''
        self.dropped = self._pose.silences = self._playback.dropped
        self.actions_executed = self.fallbacks = self.cage_trips = self.stalls = 0
        # by number: commands sent, and cage results
        self.commands, self.verdicts = [0] * len(RungKind), [0] * len(Verdict)
        self.steps_in_silence = self.steps_skipped = self.age_ns = self.oldest_age_ns = 0

    # any thread; applied at the next step

    def clear_stop(self) -> None:
        """Clear a stop by service."""
        self._clears_stop = True
        self._operator_calls.append(self._ladder.clear_stop)

    def reset_cage(self) -> None:
        """Clear the latch of the cage."""
        self._clears_latch = True
        self._operator_calls += [self._cage.reset, self.alarm.reset]

    @property
    def latched(self) -> bool:
        """Whether the cage is latched, and no operator has cleared that."""
        return self._cage.latched and not self._clears_latch

    @property
    def latch_reason(self) -> str:
        """Why the cage is latched; empty if it is not."""
        return self._cage.latch_reason

    @property
    def trip_causes(self) -> dict[str, int]:
        """Commands that the cage changed or held, by cause. Any thread."""
        return dict(self._cage.trips)

    @property
    def stopped(self) -> bool:
        """Whether the stop service was called and no reset cleared it."""
        return self._ladder.stopped and not self._clears_stop

    @property
    def stop_reason(self) -> str:
        """Why the stop service was called; empty if it was not."""
        return self._ladder.stop_reason

    def authority_inputs(self, conditions: OperatingConditions) -> AuthorityInputs:
        """Return the inputs of the table under these conditions, without an action."""
        return self._given._replace(
            conditions=conditions,
            latched=self.latched,
            stopped=self.stopped,
            teardown=self._ladder.teardown,
            joints=self._joint_motion(),
            supply=self._ladder.supply,
        )

    # request thread

    def take_executed(self) -> ExecutionReport:
        """Return the execution report: counts since start, rows since the last report."""
        runs, oldest_age_ns = self._executed.take_runs()
        return ExecutionReport(
            actions=self.actions_executed,
            fallbacks=self.fallbacks,
            trips=self.cage_trips,
            stalls=self.stalls,
            dropped_rows=self._executed.dropped_rows,
            oldest_age_s=oldest_age_ns / 1e9,
            runs=runs,
            halt=self.halt,
        )

    @property
    def halt(self) -> Halt:
        """Why the robot is at rest until a person acts."""
        if self.latched:
            return Halt.LATCHED
        return Halt.STOPPED if self.stopped else Halt.NONE

    # tick thread

    def step(
        self,
        now_ns: int,
        read_state: Callable[[], RobotState],
        conditions: OperatingConditions = DEFAULT_CONDITIONS,
        person: PersonCommand = NO_PERSON,
    ) -> tuple[ExecutedStep | None, bool]:
        """
        Return the command of this step, None for no command, and whether to call the stop
        service. `person`: the device of a person, and its target if they have taken over.
        """
        self._apply_operator_calls()
        if not self._rate_limiter.is_due(now_ns):
            self.steps_skipped += 1
            return None, False
        robot_state = read_state()
        self._update_pose(robot_state, now_ns)
        if conditions.state is not ConnectionState.DEAD:
            self._ladder.reset_teardown()
        if self._check_manual_move():
            # silent for one step; the next one holds at the measured position
            return None, False
        decision = self._rest_after_silence() or self._decide(
            now_ns, robot_state, conditions, person
        )
        self.rung, self.rung_reason = decision.kind, decision.reason
        self._record_playback(decision, conditions, now_ns)
        wanted, last = decision.wanted, self._last
        if wanted is None or last is None:
            if last is not None:
                self._stop_commanding()
            return None, decision.call_stop_service
        self._input_ids = robot_state.input_ids + person.input_ids
        return self._check(decision, wanted, last, now_ns, robot_state), decision.call_stop_service

    def _apply_operator_calls(self) -> None:
        while self._operator_calls:
            self._operator_calls.pop(0)()
        self._clears_stop = self._clears_latch = False

    @property
    def silence(self) -> str:
        """Why nothing is known of the robot, see PoseTracker; empty where it is known."""
        return self._pose.silence

    @property
    def last_silence(self) -> str:
        """The cause of the last one, as a word; empty before the first."""
        return self._pose.last_silence

    def stood_still(self, now_ns: int) -> bool:
        """Return whether this process stood still since the step that is about to be sent."""
        return self._pose.stood_still(now_ns)

    def rest(self, now_ns: int) -> Float64Array | None:
        """Return the final command, None for no command; called as the tick thread ends."""
        is_old = self._pose.stood_still(now_ns)
        return self._cage.rest(self._cage.limits.start(None) if is_old else self._last)

    def _update_pose(self, state: RobotState, now_ns: int) -> None:
        """Process the measured pose; during a silence, and as it ends, forget the rest."""
        plays = self._was_playing or self.grant.authority is ControlAuthority.PERSON
        moves = self._joint_motion() is JointMotion.MOVING
        ends = self._pose.update(
            state, now_ns, plays=plays and self._last is not None, moves=moves
        )
        if self._pose.silence:
            self.steps_in_silence += 1
            self._must_rest |= moves and bool(self._cage.limits.is_velocity.any())
            self._last = None
        if ends:
            # what was requested before may come from inputs that had waited
            self._playback.discard()

    def _rest_after_silence(self) -> LadderDecision | None:
        """
        Return the command to rest of a robot whose velocities went on during a silence, as soon as
        its positions are known; None for nothing to do.
        """
        limits = self._cage.limits
        rest = self._must_rest and (self._pose.start_command() or limits.start(None))
        if not rest:
            return None
        self._must_rest, self._last = False, rest
        self.grant = MotionGrant(ControlAuthority.NONE, AllowedMotion.SLOW_DOWN, 'silence')
        return LadderDecision(RungKind.HOLD, limits.held(rest), 'hold: silence')

    def _decide(
        self,
        now_ns: int,
        robot_state: RobotState,
        conditions: OperatingConditions,
        person: PersonCommand,
    ) -> LadderDecision:
        self._playback.follow_queue()
        if self._playback.episode_ended:
            # a teardown returns only to the start of the current episode
            self._is_first_step, self._ladder.initial_pose = True, None
            self.alarm.reset()
        self._given = given = self._given._replace(
            conditions=conditions,
            latched=self._cage.latched,
            stopped=self._ladder.stopped,
            interlock=self._cage.is_interlock_active(robot_state.state),
            teardown=self._ladder.teardown,
            joints=self._joint_motion(),
            supply=ActionSupply.FRESH,
        )
        grant, self.start_blocked_by = grant_motion(given), self._pose.silence
        wanted = self._policy_action = None
        if conditions.has_policy_beside_person:
            # its actions are taken, and not executed
            self._policy_action = self._next_action(now_ns)
        elif grant.authority is ControlAuthority.POLICY:
            wanted = self._next_action(now_ns)
        if wanted is None and grant.authority is not ControlAuthority.PERSON:
            grant = grant_motion(given._replace(supply=self._ladder.supply))
        self.grant = grant
        if self._last is None and grant.allowed in STARTING_MOTIONS:
            self.start_blocked_by = self._pose.start_blocked_by()
            self._last = self._pose.start_command()
        if grant.authority is ControlAuthority.PERSON:
            wanted = self._follow(person, robot_state)
        return self._ladder.step(
            grant,
            wanted,
            self._playback.rows_left(),
            now_ns,
            self._last,
            cleared=self._playback.cleared,
        )

    def _follow(self, person: PersonCommand, state: RobotState) -> Float64Array | None:
        """
        Return the command of this step towards the target of a person, who may be anywhere when
        they take over: a step is never beyond the limits. None without target or position.
        """
        if person.target is None or self._last is None:
            return None
        target = person.target.at(
            self._last.position, self._cage.limits.is_velocity, self._settings.step_ns / 1e9
        )
        return self._cage.reachable(target, self._last, state.measured)

    def _next_action(self, now_ns: int) -> Float64Array | None:
        """Return the next target, None if there is none or no start position is known."""
        why_not = '' if self._last else self._pose.start_blocked_by()
        if not why_not:
            return self._playback.next(now_ns)
        if self._playback.has_playable(now_ns):
            self.start_blocked_by = why_not
        return None

    def _joint_motion(self) -> JointMotion:
        if self._last is None:
            return JointMotion.SILENT
        return JointMotion.MOVING if self._cage.limits.moves(self._last) else JointMotion.AT_REST

    def _check_manual_move(self) -> bool:
        """
        Return whether a robot that held has been moved; restart from there.
        """
        holds = self.rung is RungKind.HOLD and self._joint_motion() is JointMotion.AT_REST
        if not self._pose.was_moved(self._last, holds=holds):
            return False
        self._last = self._pose.start_command()
        if self._last is None:
            self._stop_commanding()
        return True

    def _stop_commanding(self) -> None:
        """Send no commands; the next command is bounded from the position measured by then."""
        self._last = None
        self._ladder.reset()

    def _record_playback(
        self, decision: LadderDecision, conditions: OperatingConditions, now_ns: int
    ) -> None:
        playing = decision.kind is RungKind.POLICY and decision.wanted is not None
        if not playing:
            self._executed.end_row()
        if not (playing or conditions.has_policy_beside_person):
            # an action that was taken but not executed does not start an interpolation
            self._playback.reset()
        interrupted = self._is_interrupted()
        if self._was_playing and not playing:
            # a cleared queue or a stop by an operator is not a stall
            self.stalls += not (self._playback.cleared or interrupted)
        if playing:
            self._queue_empty_reported = self._is_queue_excused = False
        elif self._playback.cleared or interrupted:
            self._is_queue_excused = True
        # an empty queue after an episode began, or a stop ended, is none as long as chunks come
        is_excused = self._is_queue_excused and conditions.state is ConnectionState.STREAMING
        is_empty = not (playing or interrupted or is_excused or self.start_blocked_by)
        if is_empty and not self._queue_empty_reported:
            self._queue_empty_reported = True
            self.stalls += self._is_queue_excused
            self._on_queue_empty()
        self._report_starvation(now_ns, is_empty=is_empty, state=conditions.state)
        self._was_playing = playing

    def _report_starvation(self, now_ns: int, *, is_empty: bool, state: ConnectionState) -> None:
        """
        Report an empty queue again that was reported while there was no session: a server that
        opens one and sends no chunk leaves the robot DEGRADED, as if there were actions.
        """
        if not (is_empty and state is ConnectionState.DEGRADED):
            self._starved_since_ns = None
        elif self._starved_since_ns is None:
            self._starved_since_ns = now_ns
        elif now_ns - self._starved_since_ns >= STARVED_NS:
            self._on_queue_empty()

    def _is_interrupted(self) -> bool:
        return self.grant.cause not in ('policy', 'nothing_to_play', 'nothing_played_yet')

    def _check(
        self,
        decision: LadderDecision,
        wanted: Float64Array,
        last: LastCommand,
        now_ns: int,
        robot_state: RobotState,
    ) -> ExecutedStep:
        """Pass the target through the cage and record its result."""
        judgement = self._cage.judge(
            wanted,
            last,
            measured=robot_state.measured,
            state=robot_state.state,
            allow_return=self.grant.allowed in RETURNING_MOTIONS,
            blind=self._pose.unseen_reason(),
        )
        self.verdicts[judgement.verdict] += 1
        self.cage_trips += judgement.verdict != Verdict.PASS
        planned = self._playback.current if decision.kind is RungKind.POLICY else None
        age_ns = self._playback.age_ns(now_ns) if planned else 0
        if judgement.command is None:
            self._stop_commanding()
        else:
            self._last = last.after(judgement.command, self._settings.step_ns / 1e9)
            self.actions_executed += 1
            self.commands[decision.kind] += 1
            # a stop by an operator is not a missing action of the policy
            self.fallbacks += planned is None and not self._is_interrupted()
        if planned:
            self._record_age(age_ns)
            self._executed.record(planned, judgement.command, age_ns)
            self._watch_clamping(wanted, judgement)
        if planned or self.grant.authority is ControlAuthority.PERSON:
            self._record_start_pose(last)
        return ExecutedStep(
            planned,
            decision,
            judgement,
            age_ns,
            source=self.grant.authority,
            policy_action=self._policy_action,
            input_ids=self._input_ids,
        )

    def _record_age(self, age_ns: int) -> None:
        self.age_ns = age_ns
        self.oldest_age_ns = max(self.oldest_age_ns, age_ns)

    def _record_start_pose(self, before: LastCommand) -> None:
        """Record the pose at the start of the episode, for a teardown to initial_pose."""
        if self._is_first_step:
            self._is_first_step = False
            pose, limits = self._pose.measured_pose(before.position), self._cage.limits
            self._ladder.initial_pose = np.clip(pose, limits.low, limits.high)

    def _watch_clamping(self, wanted: Float64Array, judgement: CageResult) -> None:
        """Latch the cage if most targets of the policy are outside the position limits."""
        command = judgement.command
        if command is not None and judgement.verdict in (Verdict.PASS, Verdict.CLAMPED):
            alarm = self.alarm.record(wanted, command)
            if alarm and alarm.latches:
                self._cage.latch(alarm.text)
