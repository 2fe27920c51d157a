"""
One control step: what is played or, when there is nothing, what the ladder says; through the cage.

Plain and without a clock. The tick thread calls `step`, any thread the orders below it, which the
next step follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.judgement import Judgement, Last, Verdict
from lerobot_serve.edge.clamp_alarm import ClampAlarm
from lerobot_serve.edge.journey import Journey
from lerobot_serve.edge.ladder import Decision, Ladder
from lerobot_serve.edge.queue.actions import ActionQueue, Planned
from lerobot_serve.edge.queue.interpolation import Interpolator
from lerobot_serve.edge.rungs import Rung, RungKind
from lerobot_serve.wire import executed as wire_executed


@dataclass(frozen=True, slots=True)
class Sensed:
    """What the inputs say of the robot now, and of what its actions move; None: not known."""

    state: np.ndarray | None = None
    measured: np.ndarray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Executed:
    """What one step commands and why; `planned` is None where a rung of the ladder commands."""

    planned: Planned | None
    decision: Decision
    judgement: Judgement
    age_ns: int


class Controller:
    """Owns the last command. `dry` is told when there is nothing left to play."""

    def __init__(
        self,
        queue: ActionQueue,
        ladder: Ladder,
        cage: Cage,
        interpolator: Interpolator,
        journey: Journey,
        *,
        step_s: float,
        max_action_age_ns: int,
        dry: Callable[[], None],
        alarm: ClampAlarm | None = None,
    ) -> None:
        self._queue, self._ladder, self._cage = queue, ladder, cage
        self._interpolator, self._step_s = interpolator, step_s
        self.alarm = alarm or ClampAlarm((), window_steps=0, window_s=0.0)
        self._journey = journey
        self._max_age_ns, self._dry = max_action_age_ns, dry
        self._orders: list[Callable[[], None]] = []
        self._last: Last | None = None
        self._planned: Planned | None = None
        self._epoch = queue.epoch
        self._was_playing = self._cleared = self._diverted = False
        self._is_told_dry = True
        self.rung = RungKind.PLAY
        self.rung_reason = ''
        self.drops: Counter[str] = Counter()
        self.actions_executed = self.fallbacks = self.cage_trips = self.stalls = 0
        # by number: of commands that were sent, and of everything that was judged
        self.commands, self.verdicts = [0] * len(RungKind), [0] * len(Verdict)
        self.age_ns = self.oldest_age_ns = 0

    # any thread; followed at the next step

    def divert(self, rungs: tuple[Rung, ...], cause: str) -> None:
        """Play no more; go down these rungs."""
        self._orders.append(partial(self._divert, rungs, cause))

    def release(self) -> None:
        """Play again."""
        self._orders.append(self._release)

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

    def step(self, now_ns: int, sensed: Callable[[], Sensed]) -> tuple[Executed | None, bool]:
        """
        Return the command of this step, None when there is nothing to command, and whether the
        stop service is to be called. `sensed` is asked only when something may be commanded.
        """
        while self._orders:
            self._orders.pop(0)()
        wanted = self._next(now_ns)
        decision = self._ladder.step(
            wanted, self._rows_left(), now_ns, self._last, cleared=self._cleared
        )
        self.rung, self.rung_reason = decision.kind, decision.reason
        self._note_play(decision)
        if decision.wanted is None:
            # nobody moves it: when it is moved again, that begins where it then is
            self._last = None
            return None, decision.call_stop
        return self._judge(decision, now_ns, sensed()), decision.call_stop

    def rest(self) -> np.ndarray | None:
        """Return what to command last of all, None for nothing; the tick thread as it ends."""
        return self._cage.rest(self._last)

    def _next(self, now_ns: int) -> np.ndarray | None:
        """Return what is to be played in this step, between two actions or at the next."""
        self._cleared = self._epoch != self._queue.epoch
        if self._cleared:
            self._epoch = self._queue.epoch
            self._forget()
        oldest_ns = now_ns - self._max_age_ns
        if self._planned and self._planned.source.captured_ns < oldest_ns:
            if not self._interpolator.wants_action:
                self.drops['stale_action'] += 1
            self._forget()
        if self._interpolator.wants_action:
            self._planned = self._fresh(oldest_ns)
            if self._planned is None:
                return None
            self._interpolator.feed(self._planned.action.astype(np.float64))
        return self._interpolator.take()

    def _fresh(self, oldest_ns: int) -> Planned | None:
        """Return the next action whose observation is not too old, dropping those that are."""
        if not self._ladder.plays(self._queue.rows_left):
            return None
        planned, dropped = self._queue.take_fresh(oldest_ns)
        if dropped:
            self.drops['stale_action'] += dropped
        return planned

    def _rows_left(self) -> int:
        """Return the rows that are buffered, with the one that is being played."""
        return self._queue.rows_left + (self._planned is not None)

    def _forget(self) -> None:
        self._planned = None
        self._interpolator.reset()

    def _note_play(self, decision: Decision) -> None:
        playing = decision.kind is RungKind.PLAY and decision.wanted is not None
        if not playing:
            # nor is what was taken and not played where the next steps begin
            self._forget()
            self._journey.pause()
        if self._was_playing and not playing:
            # what somebody cleared or stopped is no stall
            self.stalls += not (self._cleared or self._diverted)
        if playing:
            self._is_told_dry = False
        elif not (self._is_told_dry or self._diverted):
            self._is_told_dry = True
            self._dry()
        self._was_playing = playing

    def _divert(self, rungs: tuple[Rung, ...], cause: str) -> None:
        self._diverted = True
        self._ladder.divert(rungs, cause)

    def _release(self) -> None:
        self._diverted = False
        self._ladder.release()

    def _judge(self, decision: Decision, now_ns: int, sensed: Sensed) -> Executed:
        last = self._last or self._cage.start(sensed.measured)
        judgement = self._cage.judge(
            decision.wanted, last, measured=sensed.measured, state=sensed.state
        )
        self.verdicts[judgement.verdict] += 1
        self.cage_trips += judgement.verdict != Verdict.PASS
        self._last = last.after(judgement.command, self._step_s) if last else None
        planned = self._planned if decision.kind is RungKind.PLAY else None
        if judgement.command is not None:
            self.actions_executed += 1
            self.commands[decision.kind] += 1
            # what somebody stopped is not what the policy failed to say
            self.fallbacks += planned is None and not self._diverted
        if planned:
            # a step that was held up may play what was seen after it began
            self.age_ns = max(0, now_ns - planned.source.captured_ns)
            self.oldest_age_ns = max(self.oldest_age_ns, self.age_ns)
            self._journey.note(planned, judgement.command, self.age_ns)
            self._watch_clamping(decision, judgement)
        return Executed(planned, decision, judgement, self.age_ns if planned else 0)

    def _watch_clamping(self, decision: Decision, judgement: Judgement) -> None:
        """Latch the cage when most of what the policy wants is outside the position limits."""
        if judgement.verdict in (Verdict.PASS, Verdict.CLAMPED):
            alarm = self.alarm.note(decision.wanted, judgement.command)
            if alarm and alarm.latches:
                self._cage.latch(alarm.text)
