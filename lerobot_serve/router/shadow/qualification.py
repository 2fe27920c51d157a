# SPDX-License-Identifier: Apache-2.0
"""
The shadow record of each policy, and its unmet requirements before it may be a canary.

The time in shadow is the sum of the gaps between compared samples, each limited to GAP_LIMIT_NS:
an idle shadow gains none. Records survive a restart. Owned by the thread `shadow`;
`unmet_requirements`, `waived_requirements` and `of` any thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import floor, isfinite, nan
from typing import Any

from lerobot_serve.contract.limits import FINGERPRINT_LIMIT, ID_LIMIT
from lerobot_serve.router.storage.checked import checked_float, checked_int, checked_text

GAP_LIMIT_NS = 10_000_000_000
SAVE_PERIOD_NS = 10_000_000_000
POLICIES_LIMIT = 32
# an episode counts again after samples of this many other episodes
RECENT_EPISODES = 512
WAIVER_LIMIT = 1024
COUNT_LIMIT, SUM_LIMIT = 2**53, 1e300
COUNTS = ('episodes', 'samples', 'trips', 'divergence_count', 'spreads_count')
SUMS = ('observed_s', 'divergence_sum', 'spreads_sum', 'latency_sum_ms')


@dataclass(slots=True)
class ShadowRecord:
    """The record of one policy. Samples with a NaN divergence count, but not in the means."""

    observed_s: float = 0.0
    episodes: int = 0
    samples: int = 0
    trips: int = 0
    divergence_sum: float = 0.0
    divergence_count: int = 0
    spreads_sum: float = 0.0
    spreads_count: int = 0
    latency_sum_ms: float = 0.0
    # who let the policy begin without the requirements, and why; empty: they hold
    waiver: str = ''
    recent: OrderedDict[str, None] = field(default_factory=OrderedDict)

    @property
    def hours(self) -> float:
        return self.observed_s / 3600

    @property
    def divergence_mean(self) -> float:
        return self.divergence_sum / self.divergence_count if self.divergence_count else nan

    @property
    def spreads_mean(self) -> float:
        return self.spreads_sum / self.spreads_count if self.spreads_count else nan

    @property
    def latency_mean_ms(self) -> float:
        return self.latency_sum_ms / self.samples if self.samples else nan

    def add_episode(self, episode_id: str) -> None:
        if not episode_id:
            return
        self.episodes += episode_id not in self.recent
        self.recent[episode_id] = None
        self.recent.move_to_end(episode_id)
        if len(self.recent) > RECENT_EPISODES:
            self.recent.popitem(last=False)


class Qualification:
    """
    The records of the latest POLICIES_LIMIT policies. `known` are the stored records, `keep`
    stores a record, `warn` logs for operators.
    """

    def __init__(
        self,
        known: Mapping[str, Any] | None = None,
        keep: Callable[[str, Any], None] = lambda policy, record: None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._keep = keep
        self._records: OrderedDict[str, ShadowRecord] = OrderedDict()
        self._sampled_ns: dict[str, int] = {}
        self._saved_ns: int | None = None
        self._changed: set[str] = set()
        # records of the other routers of a shared state, by policy and router
        self._others: dict[str, dict[str, ShadowRecord]] = {}
        for policy, row in (known or {}).items():
            try:
                self._records[checked_text(policy, FINGERPRINT_LIMIT)] = _record_from_json(row)
            except (ValueError, TypeError, KeyError) as error:
                warn(f'saved shadow record of {policy!r} discarded: invalid ({error!r})')

    def of(self, policy: str) -> ShadowRecord:
        """Return the record of a policy; an empty one for an unknown policy."""
        return self._records.get(policy) or ShadowRecord()

    def add(
        self,
        policy: str,
        episode_id: str,
        now_ns: int,
        *,
        divergence: float,
        in_spreads: float,
        trips: bool,
        latency_ms: float,
    ) -> None:
        """Add a compared sample."""
        record = self._records.setdefault(policy, ShadowRecord())
        self._records.move_to_end(policy)
        gap_ns = now_ns - self._sampled_ns.get(policy, now_ns)
        record.observed_s += min(gap_ns, GAP_LIMIT_NS) / 1e9
        self._sampled_ns[policy] = now_ns
        record.add_episode(episode_id)
        record.samples += 1
        record.trips += trips
        record.latency_sum_ms += latency_ms
        if isfinite(divergence):
            record.divergence_sum += divergence
            record.divergence_count += 1
        if isfinite(in_spreads):
            record.spreads_sum += in_spreads
            record.spreads_count += 1
        self._changed.add(policy)
        if len(self._records) > POLICIES_LIMIT:
            forgotten, _ = self._records.popitem(last=False)
            self._sampled_ns.pop(forgotten, None)
            self._changed.add(forgotten)

    def waive(self, policy: str, by: str) -> None:
        """Let a policy begin without the requirements, as an operator decides; stored at once."""
        record = self._records.setdefault(policy, ShadowRecord())
        record.waiver = by[:WAIVER_LIMIT]
        self._keep(policy, record_to_json(record))

    def adopt(self, policy: str, router: str, row: Mapping[str, Any] | None) -> None:
        """Count what another router has seen of a policy in shadow, too. Executor thread."""
        try:
            record = _record_from_json(row) if row else ShadowRecord()
        except (ValueError, TypeError, KeyError):
            # of another version
            record = ShadowRecord()
        self._others[policy] = {**self._others.get(policy, {}), router: record}

    def unmet_requirements(self, policy: str, minimum_hours: float, minimum_episodes: int) -> str:
        """Return the unmet requirements of a policy; empty when there are none, or a waiver."""
        unmet = self._unmet(policy, minimum_hours, minimum_episodes)
        return (
            f'unmet shadow requirements of {policy or "the policy"}: {unmet}'
            if unmet and not self._waiver(policy)
            else ''
        )

    def waived_requirements(self, policy: str, minimum_hours: float, minimum_episodes: int) -> str:
        """Return the unmet requirements that a policy may begin without, and who decided so."""
        waiver = self._waiver(policy)
        unmet = self._unmet(policy, minimum_hours, minimum_episodes) if waiver else ''
        return f'shadow requirements waived ({unmet}) by {waiver}' if unmet else ''

    def _unmet(self, policy: str, minimum_hours: float, minimum_episodes: int) -> str:
        records, unmet = self._of_all_routers(policy), []
        hours = sum(record.hours for record in records)
        episodes = sum(record.episodes for record in records)
        if hours < minimum_hours:
            # rounded down: an unmet requirement must not be shown as met
            unmet.append(f'{floor(100 * hours) / 100:.2f} of {minimum_hours:g} hours')
        if episodes < minimum_episodes:
            unmet.append(f'{episodes} of {minimum_episodes} episodes')
        return ', '.join(unmet)

    def _waiver(self, policy: str) -> str:
        """Return who waived the requirements, at any router; empty without one."""
        return next((r.waiver for r in self._of_all_routers(policy) if r.waiver), '')

    def of_all_routers(self, policy: str) -> ShadowRecord:
        """Return the record of a policy with the divergences that all routers have measured."""
        records = self._of_all_routers(policy)
        if len(records) == 1:
            return records[0]
        return replace(
            records[0],
            spreads_sum=sum(record.spreads_sum for record in records),
            spreads_count=sum(record.spreads_count for record in records),
        )

    def _of_all_routers(self, policy: str) -> list[ShadowRecord]:
        return [self.of(policy), *self._others.get(policy, {}).values()]

    def save_periodically(self, now_ns: int) -> None:
        """Store changed records, at most once per SAVE_PERIOD_NS."""
        if self._saved_ns is None:
            self._saved_ns = now_ns
        if self._changed and now_ns - self._saved_ns >= SAVE_PERIOD_NS:
            self._saved_ns = now_ns
            self.save()

    def save(self) -> None:
        """Store changed records now."""
        for policy in self._changed:
            record = self._records.get(policy)
            self._keep(policy, record_to_json(record) if record else None)
        self._changed.clear()


def record_to_json(record: ShadowRecord) -> dict[str, Any]:
    """Return a record as JSON for the store."""
    numbers = {name: getattr(record, name) for name in (*COUNTS, *SUMS)}
    return {**numbers, 'waiver': record.waiver, 'recent': list(record.recent)}


def _record_from_json(row: Mapping[str, Any]) -> ShadowRecord:
    if not isinstance(row['recent'], list):
        raise TypeError('recent must be a list')
    recent = [checked_text(name, ID_LIMIT) for name in row['recent'][-RECENT_EPISODES:]]
    # a record of an older version has none
    waiver = checked_text(row.get('waiver', ''), WAIVER_LIMIT)
    record = ShadowRecord(waiver=waiver, recent=OrderedDict.fromkeys(recent))
    for name in COUNTS:
        setattr(record, name, checked_int(row[name], name, COUNT_LIMIT))
    for name in SUMS:
        # a JSON writer may store 0.0 as an integer
        value = float(row[name]) if type(row[name]) is int else row[name]
        setattr(record, name, checked_float(value, name, SUM_LIMIT))
    return record
