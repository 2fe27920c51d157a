# SPDX-License-Identifier: Apache-2.0
"""
A slot: one policy, served by one or more replicas.

The policy of a slot is that of the first active replica in the list. A replica with another
policy, or started for another slot, is a mismatch and receives no requests. When no active replica
has the slot's policy, the slot adopts the policy of the next one. No ROS; called under
RoutingTable.lock.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

from lerobot_serve.contract.fingerprint import weights_of
from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.placement.eligibility import (
    BARRING_VERDICTS,
    check_eligibility,
    Eligibility,
    PolicyVerdict,
    Reachability,
    SlotConditions,
    SlotUse,
)
from lerobot_serve.router.replicas.health import Health
from lerobot_serve.router.replicas.replica import is_serving, Replica


@dataclass(frozen=True, slots=True)
class SlotDrain:
    """A drain: the slot receives no new episodes; running ones leave by `leave_by_ns`."""

    text: str
    leave_by_ns: int


@dataclass(frozen=True, slots=True)
class VerdictRecord:
    """The verdict on a policy; if it bars, running episodes leave by `leave_by_ns`."""

    verdict: PolicyVerdict
    text: str = ''
    leave_by_ns: int = 0


class VerdictRecords(UserDict[str, VerdictRecord]):
    """
    The verdicts by the fingerprint of a policy, or `slot:NAME` for any policy in a slot. Policies
    with the same digest share one: the name before it is free.
    """

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(weights_of(name))

    def __getitem__(self, name: str) -> VerdictRecord:
        return super().__getitem__(weights_of(name))

    def __setitem__(self, name: str, record: VerdictRecord) -> None:
        super().__setitem__(weights_of(name), record)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(weights_of(name))


NO_VERDICT = VerdictRecord(PolicyVerdict.NONE)


class Slot:
    """See the module. `verdicts` is shared by all slots: a verdict follows its policy."""

    def __init__(
        self,
        name: str,
        servers: tuple[str, ...],
        rules: RouterParameters,
        verdicts: VerdictRecords | None = None,
    ) -> None:
        self.name = name
        self.verdicts = VerdictRecords() if verdicts is None else verdicts
        # by an operator
        self.drain: SlotDrain | None = None
        self.is_on_trial = False
        # whether the split assigns episodes to the slot, and whether the slot takes over
        self.has_share, self.takes_failover = True, False
        make_health = partial(
            Health,
            successes=rules.healthy_threshold,
            first_probe_s=rules.probe_initial_interval_s,
            max_wait_s=rules.probe_max_interval_s,
        )
        of_slot, of_replica = rules.slot_unhealthy_threshold, rules.replica_unhealthy_threshold
        self.health = make_health(of_slot)
        # a single replica has the threshold of its slot
        of_one = of_replica if len(servers) > 1 else of_slot
        self.replicas = {each: Replica(each, name, make_health(of_one)) for each in servers}
        self.policy = ''
        # why the policy is incompatible with the other slot
        self.incompatibility = ''
        # unmet shadow requirements of the policy
        self.unmet_requirements = ''
        # those that it may begin without, and who decided so
        self.waived_requirements = ''
        # before activation the policy follows the order of the list, not of the reports
        self.is_policy_pinned = False

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    @property
    def has_ready_replica(self) -> bool:
        return any(replica.is_ready for replica in self)

    @property
    def verdict_record(self) -> VerdictRecord:
        """The verdict on the slot, or on its policy."""
        of_slot = self.verdicts.get(f'slot:{self.name}')
        return of_slot or self.verdicts.get(self.policy, NO_VERDICT)

    def has_left(self, policy: str, now_ns: int) -> bool:
        """Return whether running episodes have left a policy by now, because a verdict bars it."""
        record = self.verdicts.get(policy, NO_VERDICT)
        return record.verdict in BARRING_VERDICTS and now_ns >= record.leave_by_ns

    @property
    def reach(self) -> Reachability:
        if not any(replica.is_reachable for replica in self):
            return Reachability.UNREACHABLE
        return (
            Reachability.HEALTHY
            if self.health.is_healthy and self.has_ready_replica
            else Reachability.UNHEALTHY
        )

    def conditions(self, now_ns: int = 0, reach: Reachability | None = None) -> SlotConditions:
        """Return the conditions of the slot; `reach` is its reachability for one session."""
        record, drain = self.verdict_record, self.drain
        verdict, is_barred = record.verdict, record.verdict in BARRING_VERDICTS
        if not is_barred and self.is_on_trial:
            verdict = PolicyVerdict.ON_TRIAL
        leaving = (is_barred and now_ns >= record.leave_by_ns) or (
            drain is not None and now_ns >= drain.leave_by_ns
        )
        reach = reach or self.reach
        return SlotConditions(
            verdict,
            has_share=self.has_share,
            reach=reach,
            takes_failover=self.takes_failover,
            leaving=leaving,
            verdict_text=record.text,
            drained=f'drained by an operator: {drain.text}' if drain else '',
            unmet_requirements=self.unmet_requirements,
            incompatibility=self.incompatibility,
            unreachable='' if reach is Reachability.HEALTHY else self._unreachable_reason(reach),
        )

    def _unreachable_reason(self, reach: Reachability) -> str:
        if not self.health.is_healthy and reach is Reachability.UNHEALTHY:
            return f'{self.health.state.value}: {self.health.reason}'
        texts = [f'{r.name}: {r.text}' for r in self if r.text]
        return '; '.join(texts) or 'no session of this client'

    @property
    def is_healthy(self) -> bool:
        """Whether the slot may have a share of new episodes."""
        return check_eligibility(SlotUse.GET_SHARE, self.conditions()).grade is Eligibility.YES

    @property
    def text(self) -> str:
        """Why the slot may not have a share of new episodes; empty when it may."""
        return check_eligibility(SlotUse.GET_SHARE, self.conditions()).reason

    def record_report(self, server: str, report: ServerStatus, now_ns: int = 0) -> str:
        """Record the report of a replica; return a text if the policy of the slot changes."""
        self.replicas[server].record_report(report, now_ns)
        return self._changed_policy()

    def record_swap(self, server: str, policy: str, now_ns: int) -> str:
        """Record a policy that a replica replies with; return a text as record_report does."""
        self.replicas[server].record_swap(policy, now_ns)
        return self._changed_policy()

    def _changed_policy(self) -> str:
        before = self.policy
        self._choose_policy()
        if before and self.policy != before:
            return f'slot {self.name}: policy changed from {before} to {self.policy}'
        return ''

    def pin_policy(self) -> None:
        """Choose the policy once more, and keep it as long as any replica serves it."""
        self._choose_policy()
        self.is_policy_pinned = True

    def _choose_policy(self) -> None:
        """Set the policy of the slot from the reports, and name the replicas of another."""
        reports = [replica.report for replica in self if replica.report and replica.is_available]
        policies = [r.policy for r in reports if is_serving(r) and r.slot == self.name]
        is_kept = self.is_policy_pinned and self.policy in policies
        if policies and not is_kept:
            self.policy = policies[0]
        for each in self:
            each.mismatch = self._mismatch_reason(each)

    def _mismatch_reason(self, replica: Replica) -> str:
        report = replica.report
        if report is None or not is_serving(report):
            return ''
        if report.slot != self.name:
            return (
                f'{replica.name} is configured in slot {self.name!r} but was started for slot '
                f'{report.slot!r}; start it with slot:={self.name}'
            )
        if report.policy != self.policy:
            return (
                f'{replica.name} serves {report.policy}, and slot {self.name} is {self.policy}; '
                'all replicas of a slot must serve the same policy'
            )
        return ''

    def choose(self, exclude: Collection[str] = ()) -> Replica | None:
        """
        Return the least loaded replica that is not in `exclude`, preferably a ready one; an
        unhealthy replica needs a session to be probed. None without a reachable replica.
        """
        found = [r for r in self if r.is_reachable and r.name not in exclude]
        return min(found, key=lambda r: (not r.is_ready, r.placement_load), default=None)


def overall_health(slots: dict[str, Slot]) -> str:
    """Return `healthy`, `unavailable` or `slot_NAME_drained` for all slots together."""
    bad = [name for name, slot in slots.items() if not slot.is_healthy]
    if not bad:
        return 'healthy'
    return 'unavailable' if len(bad) == len(slots) else f'slot_{bad[0]}_drained'
