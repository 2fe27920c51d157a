"""
A slot: one policy, served by one or more replicas.

Its fingerprint is that of the first replica in the list that serves. A replica with another one,
or started for another slot, is a stranger and gets nothing, until none of the slot's policy is
there any more: then the slot takes the policy that is. Plain; the dispatcher's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lerobot_serve.router.eligibility import (
    BARRING,
    Conditions,
    Grade,
    judge,
    Path,
    Reach,
    Verdict,
)
from lerobot_serve.router.health import Health, HealthRules
from lerobot_serve.router.replicas import Replica, Seen


@dataclass(frozen=True, slots=True)
class Hold:
    """Keeps new episodes away; running ones leave at `leave_by_ns` at the latest."""

    text: str
    leave_by_ns: int


@dataclass(frozen=True, slots=True)
class Bar:
    """What is decided about a policy; where that bars it, running episodes leave as with Hold."""

    verdict: Verdict
    text: str = ''
    leave_by_ns: int = 0


# fingerprint of a policy, or `slot:NAME` for whatever policy a slot has
Bars = dict[str, Bar]
NOTHING = Bar(Verdict.NONE)


class Slot:
    """See the module. `bars` are those of all slots; a policy brings its verdict along."""

    def __init__(
        self,
        name: str,
        servers: tuple[str, ...],
        rules: HealthRules,
        replica_rules: HealthRules,
        bars: Bars | None = None,
    ) -> None:
        self.name = name
        self.bars: Bars = {} if bars is None else bars
        # by an operator
        self.drain: Hold | None = None
        self.is_on_trial = False
        # whether the split gives it episodes, and whether it is declared to take over
        self.has_share, self.is_spare = True, False
        self.health = Health(rules)
        # the only one is as well as its slot
        of_one = replica_rules if len(servers) > 1 else rules
        self.replicas = {server: Replica(server, name, of_one) for server in servers}
        self.policy = ''
        # why it cannot serve the robots that the other slot serves
        self.misfit = ''
        # what its policy lacks before it may take episodes
        self.unproven = ''
        # until all have had their chance to be heard, the order of arrival decides nothing
        self.is_settled = False

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    @property
    def can_answer(self) -> bool:
        return any(replica.is_ready for replica in self)

    @property
    def bar(self) -> Bar:
        """The verdict on its policy, or on whatever it serves."""
        of_slot = self.bars.get(f'slot:{self.name}')
        return of_slot or self.bars.get(self.policy, NOTHING)

    @property
    def reach(self) -> Reach:
        if not any(replica.is_reachable for replica in self):
            return Reach.ABSENT
        return Reach.HEALTHY if self.health.is_healthy and self.can_answer else Reach.SUSPECT

    def conditions(self, now_ns: int = 0, reach: Reach | None = None) -> Conditions:
        """Return what its eligibility depends on; `reach` is that for one robot."""
        bar, drain = self.bar, self.drain
        verdict, is_barred = bar.verdict, bar.verdict in BARRING
        if not is_barred and self.is_on_trial:
            verdict = Verdict.ON_TRIAL
        leaving = (is_barred and now_ns >= bar.leave_by_ns) or (
            drain is not None and now_ns >= drain.leave_by_ns
        )
        reach = reach or self.reach
        return Conditions(
            verdict,
            self.has_share,
            reach,
            self.is_spare,
            leaving,
            bar.text,
            f'drained by an operator: {drain.text}' if drain else '',
            self.unproven,
            self.misfit,
            '' if reach is Reach.HEALTHY else self._why_unreachable(reach),
        )

    def _why_unreachable(self, reach: Reach) -> str:
        if not self.health.is_healthy and reach is Reach.SUSPECT:
            return f'{self.health.state.value}: {self.health.reason}'
        texts = [f'{r.name}: {r.text}' for r in self if r.text]
        return '; '.join(texts) or 'it has no session of this robot'

    @property
    def is_healthy(self) -> bool:
        """Whether it may have a share of new episodes."""
        return judge(Path.GET_SHARE, self.conditions()).grade is Grade.YES

    @property
    def text(self) -> str:
        """Why it may have no share of new episodes, in words; empty when it may."""
        return judge(Path.GET_SHARE, self.conditions()).reason

    def learn(self, server: str, seen: Seen) -> str:
        """Note what a replica says of itself; return what changed for the slot, in words."""
        replica = self.replicas[server]
        replica.seen, replica.is_there = seen, True
        before = self.policy
        self._pin()
        for each in self:
            each.stranger = self._why_stranger(each)
        if before and self.policy != before:
            return f'slot {self.name} serves {self.policy} now, before it was {before}'
        return ''

    def _pin(self) -> None:
        """Decide which policy is the slot's."""
        serving = [r for r in self if r.seen and r.seen.is_active and r.is_there]
        serving = [r for r in serving if r.seen.slot == self.name]
        kept = self.is_settled and any(r.seen.policy == self.policy for r in serving)
        if serving and not kept:
            self.policy = serving[0].seen.policy

    def _why_stranger(self, replica: Replica) -> str:
        seen = replica.seen
        if seen is None or not seen.is_active:
            return ''
        if seen.slot != self.name:
            return (
                f'{replica.name} was started for slot {seen.slot!r} and stands in slot '
                f'{self.name!r}; start it with slot:={self.name}'
            )
        if seen.policy != self.policy:
            return (
                f'{replica.name} serves {seen.policy}, and slot {self.name} is {self.policy}; '
                'all replicas of a slot must serve the same policy'
            )
        return ''

    def choose(self, besides: Collection[str] = ()) -> Replica | None:
        """
        Return the least loaded replica that is ready and not one of `besides`; when there is none,
        one that has failed lately: without a session it could not be tried.
        """
        found = [r for r in self if r.is_reachable and r.name not in besides]
        return min(found, key=lambda r: (not r.is_ready, r.pressure), default=None)


def verdict(slots: dict[str, Slot]) -> str:
    """Return what the health of the slots comes to."""
    bad = [name for name, slot in slots.items() if not slot.is_healthy]
    if not bad:
        return 'healthy'
    return 'degraded' if len(bad) == len(slots) else f'drain-{bad[0]}'
