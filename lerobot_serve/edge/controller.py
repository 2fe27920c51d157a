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
from lerobot_serve.cage.judgement import Judgement, Last, Verdict
from lerobot_serve.cage.start import Start
from lerobot_serve.edge.authority import (
    Allowed,
    Commander,
    decide,
    Grant,
    Joints,
    Orders,
    Situation,
    Supply,
    Teardown,
)
from lerobot_serve.edge.clamp_alarm import ClampAlarm
from lerobot_serve.edge.holding import Holding
from lerobot_serve.edge.journey import Journey
from lerobot_serve.edge.ladder import Decision, Ladder
from lerobot_serve.edge.pacing import Pacing
from lerobot_serve.edge.playing import Playing
from lerobot_serve.edge.queue.actions import ActionQueue
from lerobot_serve.edge.queue.interpolation import Interpolator
from lerobot_serve.edge.rungs import RungKind
from lerobot_serve.edge.states import State
from lerobot_serve.edge.step import Executed, Sensed, Timing
from lerobot_serve.edge.whereabouts import Whereabouts
from lerobot_serve.wire import executed as wire_executed

ORDERS = Orders()
# whose motion takes joints back that stand outside their limits or too far ahead; in any other
# state that would be a motion that began by itself
TAKES_BACK = (Allowed.PLAY, Allowed.FALL_BACK, Allowed.TEARDOWN)
# what begins from silence
BEGINS = (Allowed.PLAY, Allowed.INTERLOCK)


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
        journey: Journey,
        start: Start,
        timing: Timing,
        *,
        dry: Callable[[], None],
        releases: bool = False,
        alarm: ClampAlarm | None = None,
    ) -> None:
        self._ladder, self._cage, self._journey = ladder, cage, journey
        self.alarm = alarm or ClampAlarm((), window_steps=0, window_s=0.0)
        self._playing = Playing(queue, ladder, interpolator, timing.max_action_age_ns)
        self._where = Whereabouts(start, Holding(cage.limits), timing.max_blind_ns)
        self._pacing, self._timing = Pacing(timing.step_ns), timing
        self._dry, self._releases = dry, releases
        self._orders: list[Callable[[], None]] = []
        self._last: Last | None = None
        self._begins_episode = self._said_dry = True
        self._was_playing = False
        self.grant = Grant(Commander.LADDER, Allowed.NONE, '')
        self.rung = RungKind.PLAY
        self.rung_reason = ''
        # why it does not begin though it may, empty when it does
        self.waits_for = ''
        self.drops: Counter[str] = self._playing.drops
        self.actions_executed = self.fallbacks = self.cage_trips = self.stalls = 0
        # by number: of commands that were sent, and of everything that was judged
        self.commands, self.verdicts = [0] * len(RungKind), [0] * len(Verdict)
        self.ticks_skipped = self.age_ns = self.oldest_age_ns = 0

    # any thread; followed at the next step

    def lift_stop(self) -> None:
        """Lift a stop by service: what led to it is over."""
        self._orders.append(self._ladder.lift_stop)

    def reset_cage(self) -> None:
        """Let a latched cage judge again."""
        self._orders += [self._cage.reset, self.alarm.reset]

    @property
    def latched(self) -> bool:
        return self._cage.latched

    @property
    def latched_by(self) -> str:
        """Why the cage is latched, empty when it is not."""
        return self._cage.latched_by

    @property
    def stopped(self) -> bool:
        """Whether the stop service was called, and no reset lifted that."""
        return self._ladder.stopped

    @property
    def teardown(self) -> Teardown:
        return self._ladder.teardown

    @property
    def supply(self) -> Supply:
        return self._ladder.supply

    # request thread

    def report(self) -> wire_executed.Executed:
        """Return what was commanded: counts since start, rows since the last report."""
        runs, oldest_age_ns = self._journey.take()
        return wire_executed.Executed(
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
        self, now_ns: int, sense: Callable[[], Sensed], orders: Orders = ORDERS
    ) -> tuple[Executed | None, bool]:
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
        moves = self._joints() is Joints.MOVING
        self._where.see(sensed, now_ns, self._last, plays=self._was_playing, moves=moves)
        if orders.state is not State.DEAD:
            self._ladder.revive()
        if self._was_moved_by_hand():
            # silent for a step: the next one holds where the robot now is
            return None, False
        decision = self._decide(now_ns, sensed, orders)
        self.rung, self.rung_reason = decision.kind, decision.reason
        self._note_play(decision)
        if decision.wanted is None:
            self._fall_silent()
            return None, decision.call_stop
        return self._judge(decision, now_ns, sensed), decision.call_stop

    def rest(self) -> np.ndarray | None:
        """Return what to command last of all, None for nothing; the tick thread as it ends."""
        return self._cage.rest(self._last)

    def _decide(self, now_ns: int, sensed: Sensed, orders: Orders) -> Decision:
        self._playing.follow_queue()
        if self._playing.cleared:
            # no teardown returns to where an earlier episode began
            self._begins_episode, self._ladder.initial_pose = True, None
        joints = self._joints()
        given = Situation(
            orders,
            self._cage.latched,
            self._ladder.stopped,
            self._cage.force(sensed.state),
            self._releases,
            self._ladder.teardown,
            joints,
            Supply.FRESH,
        )
        grant, wanted, self.waits_for = decide(given), None, ''
        if grant.commander is Commander.POLICY:
            wanted = self._next(now_ns)
        if wanted is None and grant.commander is not Commander.PERSON:
            grant = decide(given._replace(supply=self._ladder.supply))
        self.grant = grant
        if self._last is None and grant.allowed in BEGINS:
            self.waits_for, self._last = self._where.why_no_start(), self._where.begin()
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
        why_not = '' if self._last else self._where.why_no_start()
        if not why_not:
            return self._playing.next(now_ns)
        self.waits_for = why_not if self._playing.waits(now_ns) else ''
        return None

    def _joints(self) -> Joints:
        if self._last is None:
            return Joints.SILENT
        return Joints.MOVING if self._cage.limits.moves(self._last) else Joints.AT_REST

    def _was_moved_by_hand(self) -> bool:
        """Return whether a robot that held or was lost stands elsewhere; it begins from there."""
        holds = self.rung is RungKind.HOLD and self._joints() is Joints.AT_REST
        if not self._where.was_moved(self._last, holds=holds):
            return False
        self._last = self._where.begin()
        if self._last is None:
            self._fall_silent()
        return True

    def _fall_silent(self) -> None:
        """Command nothing: the next command is bounded from where the robot is by then."""
        self._last = None
        self._ladder.forget()

    def _note_play(self, decision: Decision) -> None:
        playing = decision.kind is RungKind.PLAY and decision.wanted is not None
        if not playing:
            # nor is what was taken and not played where the next steps begin
            self._playing.forget()
            self._journey.pause()
        diverted = self._is_diverted()
        if self._was_playing and not playing:
            # what a person cleared or stopped is no stall
            self.stalls += not (self._playing.cleared or diverted)
        if playing:
            self._said_dry = False
        elif not (self._said_dry or diverted or self.waits_for):
            self._said_dry = True
            self._dry()
        self._was_playing = playing

    def _is_diverted(self) -> bool:
        return self.grant.cause not in ('play', 'nothing_to_play', 'nothing_played_yet')

    def _judge(self, decision: Decision, now_ns: int, sensed: Sensed) -> Executed:
        last = self._last
        judgement = self._cage.judge(
            decision.wanted,
            last,
            measured=sensed.measured,
            state=sensed.state,
            lead_back=self.grant.allowed in TAKES_BACK,
            blind=self._where.blind(now_ns),
        )
        self.verdicts[judgement.verdict] += 1
        self.cage_trips += judgement.verdict != Verdict.PASS
        planned = self._playing.planned if decision.kind is RungKind.PLAY else None
        age_ns = self._playing.age_ns(now_ns) if planned else 0
        if judgement.command is None:
            self._fall_silent()
        else:
            self._last = last.after(judgement.command, self._timing.step_ns / 1e9)
            self.actions_executed += 1
            self.commands[decision.kind] += 1
            # what a person stopped is not what the policy failed to say
            self.fallbacks += planned is None and not self._is_diverted()
        if planned:
            self._note_age(age_ns)
            self._journey.note(planned, judgement.command, age_ns)
            self._remember_begin(last)
            self._watch_clamping(decision, judgement)
        return Executed(planned, decision, judgement, age_ns)

    def _note_age(self, age_ns: int) -> None:
        self.age_ns = age_ns
        self.oldest_age_ns = max(self.oldest_age_ns, age_ns)

    def _remember_begin(self, before: Last) -> None:
        """Note where the robot stood as the episode began, for a teardown that returns there."""
        if self._begins_episode:
            self._begins_episode = False
            pose, limits = self._where.pose(before.position), self._cage.limits
            self._ladder.initial_pose = np.clip(pose, limits.low, limits.high)

    def _watch_clamping(self, decision: Decision, judgement: Judgement) -> None:
        """Latch the cage when most of what the policy wants is outside the position limits."""
        if judgement.verdict in (Verdict.PASS, Verdict.CLAMPED):
            alarm = self.alarm.note(decision.wanted, judgement.command)
            if alarm and alarm.latches:
                self._cage.latch(alarm.text)
