# SPDX-License-Identifier: Apache-2.0
"""
A slot: one policy, served by one or more replicas.

Its fingerprint is that of the first active replica in the list. A replica with another policy, or
started for another slot, is a mismatch and gets no requests, until no replica of the slot's policy
is left: then the slot takes over the other policy. No ROS; called under the dispatcher's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lerobot_serve.router.placement.eligibility import (
    BARRING_VERDICTS,
    check_eligibility,
    Eligibility,
    PolicyVerdict,
    Reachability,
    SlotConditions,
    SlotUse,
)
from lerobot_serve.router.replicas.health import Health, HealthRules
from lerobot_serve.router.replicas.replica import Replica, ReplicaReport


@dataclass(frozen=True, slots=True)
class SlotDrain:
    """Keeps new episodes away; running ones leave at `leave_by_ns` at the latest."""

    text: str
    leave_by_ns: int


@dataclass(frozen=True, slots=True)
class VerdictRecord:
    """The verdict on a policy; where it bars, running episodes leave as with SlotDrain."""

    verdict: PolicyVerdict
    text: str = ''
    leave_by_ns: int = 0


# fingerprint of a policy, or `slot:NAME` for whatever policy a slot has
VerdictRecords = dict[str, VerdictRecord]
NO_VERDICT = VerdictRecord(PolicyVerdict.NONE)


class Slot:
    """See the module. `bars` are those of all slots; a policy brings its verdict along."""

    def __init__(
        self,
        name: str,
        servers: tuple[str, ...],
        rules: HealthRules,
        replica_rules: HealthRules,
        bars: VerdictRecords | None = None,
    ) -> None:
        self.name = name
        self.bars: VerdictRecords = {} if bars is None else bars
        # by an operator
        self.drain: SlotDrain | None = None
        self.is_on_trial = False
        # whether the split gives it episodes, and whether it may take over
        self.has_share, self.takes_failover = True, False
        self.health = Health(rules)
        # a single replica is as healthy as its slot
        of_one = replica_rules if len(servers) > 1 else rules
        self.replicas = {server: Replica(server, name, of_one) for server in servers}
        self.policy = ''
        # why it is incompatible with the other slot
        self.misfit = ''
        # what its policy needs before it may take episodes
        self.unmet_requirements = ''
        # before activation the policy follows the list order, not the order of arrival
        self.is_policy_pinned = False

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    @property
    def has_ready_replica(self) -> bool:
        return any(replica.is_ready for replica in self)

    @property
    def bar(self) -> VerdictRecord:
        """The verdict on its policy, or on the slot itself."""
        of_slot = self.bars.get(f'slot:{self.name}')
        return of_slot or self.bars.get(self.policy, NO_VERDICT)

    @property
    def reach(self) -> Reachability:
        if not any(replica.is_reachable for replica in self):
            return Reachability.ABSENT
        return (
            Reachability.HEALTHY
            if self.health.is_healthy and self.has_ready_replica
            else Reachability.SUSPECT
        )

    def conditions(self, now_ns: int = 0, reach: Reachability | None = None) -> SlotConditions:
        """Return what its eligibility depends on; `reach` is that for one robot."""
        bar, drain = self.bar, self.drain
        verdict, is_barred = bar.verdict, bar.verdict in BARRING_VERDICTS
        if not is_barred and self.is_on_trial:
            verdict = PolicyVerdict.ON_TRIAL
        leaving = (is_barred and now_ns >= bar.leave_by_ns) or (
            drain is not None and now_ns >= drain.leave_by_ns
        )
        reach = reach or self.reach
        return SlotConditions(
            verdict,
            self.has_share,
            reach,
            self.takes_failover,
            leaving,
            bar.text,
            f'drained by an operator: {drain.text}' if drain else '',
            self.unmet_requirements,
            self.misfit,
            '' if reach is Reachability.HEALTHY else self._why_unreachable(reach),
        )

    def _why_unreachable(self, reach: Reachability) -> str:
        if not self.health.is_healthy and reach is Reachability.SUSPECT:
            return f'{self.health.state.value}: {self.health.reason}'
        texts = [f'{r.name}: {r.text}' for r in self if r.text]
        return '; '.join(texts) or 'no session of this client'

    @property
    def is_healthy(self) -> bool:
        """Whether it may have a share of new episodes."""
        return check_eligibility(SlotUse.GET_SHARE, self.conditions()).grade is Eligibility.YES

    @property
    def text(self) -> str:
        """Why it may have no share of new episodes, in words; empty when it may."""
        return check_eligibility(SlotUse.GET_SHARE, self.conditions()).reason

    def learn(self, server: str, seen: ReplicaReport) -> str:
        """Record the report of a replica; return what changed for the slot."""
        replica = self.replicas[server]
        replica.report, replica.is_there = seen, True
        before = self.policy
        self._choose_policy()
        for each in self:
            each.mismatch = self._mismatch_reason(each)
        if before and self.policy != before:
            return f'slot {self.name}: policy changed from {before} to {self.policy}'
        return ''

    def _choose_policy(self) -> None:
        """Decide which policy is the slot's."""
        serving = [r for r in self if r.report and r.report.is_active and r.is_there]
        serving = [r for r in serving if r.report.slot == self.name]
        kept = self.is_policy_pinned and any(r.report.policy == self.policy for r in serving)
        if serving and not kept:
            self.policy = serving[0].report.policy

    def _mismatch_reason(self, replica: Replica) -> str:
        seen = replica.report
        if seen is None or not seen.is_active:
            return ''
        if seen.slot != self.name:
            return (
                f'{replica.name} is configured in slot {self.name!r} but was started for slot '
                f'{seen.slot!r}; start it with slot:={self.name}'
            )
        if seen.policy != self.policy:
            return (
                f'{replica.name} serves {seen.policy}, and slot {self.name} is {self.policy}; '
                'all replicas of a slot must serve the same policy'
            )
        return ''

    def choose(self, besides: Collection[str] = ()) -> Replica | None:
        """
        Return the least loaded ready replica that is not in `besides`; when there is none, an
        unhealthy one: it needs a session to be probed.
        """
        found = [r for r in self if r.is_reachable and r.name not in besides]
        return min(found, key=lambda r: (not r.is_ready, r.placement_load), default=None)


def overall_health(slots: dict[str, Slot]) -> str:
    """Return the overall health of the slots."""
    bad = [name for name, slot in slots.items() if not slot.is_healthy]
    if not bad:
        return 'healthy'
    return 'unavailable' if len(bad) == len(slots) else f'slot_{bad[0]}_drained'
