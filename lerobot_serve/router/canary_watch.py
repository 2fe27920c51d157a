"""
The canary at work: what the slots did goes in, the split comes out. The executor thread.

Slot b is the candidate, slot a the champion. While the canary goes on the split is its own; before
and after it is the operator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.canary import Canary, NotAllowed
from lerobot_serve.router.canary.facts import Facts, SlotFacts
from lerobot_serve.router.canary.forecast import episodes_to_decide
from lerobot_serve.router.canary.record import Happening
from lerobot_serve.router.canary.states import State
from lerobot_serve.router.canary.store import CanaryFile
from lerobot_serve.router.canary.trial import EpisodeEvent
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.slots import Slot
from lerobot_serve.router.tally import Event, SlotTally
from lerobot_serve_interfaces.msg import CanaryState

CANDIDATE, CHAMPION = 'b', 'a'
ARMS = {CANDIDATE: 'candidate', CHAMPION: 'champion'}
SLOTS = {arm: slot for slot, arm in ARMS.items()}
STATES = {
    State.OFF: CanaryState.OFF,
    State.WAITING: CanaryState.WAITING,
    State.RUNNING: CanaryState.RUNNING,
    State.HELD: CanaryState.HELD,
    State.PAUSED: CanaryState.PAUSED,
    State.PROMOTED: CanaryState.PROMOTED,
    State.ROLLED_BACK: CanaryState.ROLLED_BACK,
}
LOG10_E = 0.4342944819032518


class CanaryWatch:
    """`set_split` changes the parameter split_percent, `tell` is for operators."""

    def __init__(
        self,
        parameters: RouterParameters,
        file: Path,
        *,
        set_split: Callable[[int], None],
        tell: Callable[[str], None],
    ) -> None:
        self.canary = Canary(parameters.plan, parameters.terms, parameters.limits)
        self._file = CanaryFile(file)
        self._set_split, self._tell = set_split, tell
        self._share: int | None = None
        self._pending: tuple[Happening, ...] = ()
        self.happened: Callable[[Happening, int | None], None] = lambda happening, share: None
        warning = self._file.load(self.canary)
        if warning:
            tell(warning)

    def look(self, now_ns: int, facts: Facts) -> bool:
        """Look at the facts and act on them; return whether anything happened."""
        happenings = (*self._pending, *self.canary.look(now_ns, facts))
        self._pending = ()
        self._follow(now_ns, happenings)
        return bool(happenings)

    def _follow(self, now_ns: int, happenings: tuple[Happening, ...]) -> None:
        share = self.canary.share_percent
        if share is not None and share != self._share:
            # first of all: new episodes go elsewhere from now on
            self._set_split(100 - share)
        self._share = share
        for happening in happenings:
            self._tell(f'canary {happening.what}: {happening.why}')
            self.happened(happening, share)
        warning = self._file.save(now_ns, self.canary, at_once=bool(happenings))
        if warning:
            self._tell(warning)

    def change(self, parameters: RouterParameters) -> None:
        """Take other limits; another plan begins anew, with the next look."""
        self.canary.limits = parameters.limits
        before = self.canary.history
        self.canary.replan(parameters.plan, parameters.terms)
        if self.canary.history != before:
            self._pending += self.canary.history[-1:]

    def check_split(self, old: int, new: int) -> None:
        """Raise ParameterError for a split that is the canary's to choose."""
        if new != old and not self.canary.is_over:
            raise ParameterError(
                f"split_percent stays {old}: it is the canary's ({self.canary.text}); take its "
                'plan away (canary.plan: []), or promote it or roll it back with control_slot'
            )

    def control(self, word: str, reason: str, now_ns: int) -> str:
        """Follow an operator's word and return what was done. Raises NotAllowed."""
        if self.canary.state is State.OFF:
            raise NotAllowed('there is no canary; give it a plan with the parameter canary.plan')
        text = getattr(self.canary, word)(reason)
        self._follow(now_ns, self.canary.history[-1:])
        return text

    def report(self, stamp: Any) -> CanaryState:
        """Return what operators see."""
        canary = self.canary
        record, plan = canary.record, canary.plan
        facts = canary.seen(Facts(SlotFacts(), SlotFacts()))
        return CanaryState(
            stamp=stamp,
            state=STATES[canary.state],
            slot=CANDIDATE,
            candidate_policy=record.policies['candidate'],
            champion_policy=record.policies['champion'],
            step=canary.step,
            steps=len(plan.steps) if plan else 0,
            share_percent=canary.share_percent or 0,
            text=canary.text[:1024],
            more_episodes=self._more_episodes(),
            candidate_successes=facts.candidate.arm.success,
            candidate_failures=facts.candidate.arm.failure,
            champion_successes=facts.champion.arm.success,
            champion_failures=facts.champion.arm.failure,
            log10_evidence_not_worse=record.comparison.not_worse * LOG10_E,
            log10_evidence_worse=record.comparison.worse * LOG10_E,
            time_at_step_s=record.time_ns / 1e9,
        )

    def _more_episodes(self) -> int:
        canary = self.canary
        if canary.state not in (State.RUNNING, State.HELD) or canary.record.comparison.passed:
            return -1
        forecast = episodes_to_decide(
            canary.record.trial,
            share_percent=canary.share_percent,
            terms=canary.terms,
            trials=len(canary.plan.trials),
        )
        return forecast.episodes if forecast else -1

    def open_episodes(self) -> list[tuple[str, str]]:
        """Return episodes of this step whose verdict may still come, with their slot."""
        return [(name, SLOTS[arm]) for name, arm in self.canary.open_episodes.items()]


def arm_events(events: Sequence[Event]) -> tuple[EpisodeEvent, ...]:
    """Return what the tally noted of episodes, by the arm in which they began."""
    return tuple(EpisodeEvent(name, what, ARMS[slot]) for name, what, slot in events)


def slot_facts(slot: Slot, tally: SlotTally) -> SlotFacts:
    """Return what was seen of a slot since the start; under the dispatcher's lock."""
    return SlotFacts(
        answers=tally.answers + tally.failed.total(),
        failed_answers=tally.failed.total(),
        commands=tally.commands,
        fallbacks=tally.fallbacks,
        trips=tally.trips,
        latency_ms_p95=tally.latency.percentile_ms(95),
        oldest_age_s=tally.oldest_age_s,
        healthy=slot.is_healthy,
        health_text=slot.text,
        policy=slot.policy,
    )
