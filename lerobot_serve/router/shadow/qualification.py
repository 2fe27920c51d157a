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
from math import floor, isfinite, nan
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from lerobot_serve.contract.limits import FINGERPRINT_LIMIT, ID_LIMIT
from lerobot_serve.files.load import load, text_of

GAP_LIMIT_NS = 10_000_000_000
SAVE_PERIOD_NS = 10_000_000_000
POLICIES_LIMIT = 32
# an episode counts again after samples of this many other episodes
RECENT_EPISODES = 512
WAIVER_LIMIT = 1024
Count = Annotated[int, Meta(ge=0, le=2**53)]
Sum = Annotated[float, Meta(ge=0, le=1e300)]
Fingerprint = Annotated[str, text_of(FINGERPRINT_LIMIT)]
Episodes = list[Annotated[str, text_of(ID_LIMIT)]]


class ShadowRecord(Struct):
    """The record of one policy. Samples with a NaN divergence count, but not in the means."""

    observed_s: Sum = 0.0
    episodes: Count = 0
    samples: Count = 0
    trips: Count = 0
    divergence_sum: Sum = 0.0
    divergence_count: Count = 0
    spreads_sum: Sum = 0.0
    spreads_count: Count = 0
    latency_sum_ms: Sum = 0.0
    # who let the policy begin without the requirements, and why; empty: they hold
    waiver: Annotated[str, Meta(max_length=WAIVER_LIMIT)] = ''
    # a list where it is stored
    recent: dict[str, None] = msgspec.field(default_factory=dict)

    @property
    def hours(self) -> float:
        return self.observed_s / 3600

    @property
    def divergence_mean(self) -> float:
        return self.divergence_sum / self.divergence_count if self.divergence_count else nan

    @property
    def spreads_mean(self) -> float:
        return self.spreads_sum / self.spreads_count if self.spreads_count else nan

    def add_episode(self, episode_id: str) -> None:
        if not episode_id:
            return
        self.episodes += episode_id not in self.recent
        self.recent.pop(episode_id, None)
        self.recent[episode_id] = None
        if len(self.recent) > RECENT_EPISODES:
            del self.recent[next(iter(self.recent))]


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
                self._records[load(Fingerprint, policy, 'fingerprint')] = _stored(row)
            except ValueError as error:
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
        self._keep(policy, _to_store(record))

    def adopt(self, policy: str, router: str, row: Mapping[str, Any] | None) -> None:
        """Count what another router has seen of a policy in shadow, too. Executor thread."""
        try:
            record = _stored(row) if row else ShadowRecord()
        except ValueError:
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
        return msgspec.structs.replace(
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
            self._keep(policy, _to_store(record) if record else None)
        self._changed.clear()


def _to_store(record: ShadowRecord) -> dict[str, Any]:
    return {**msgspec.to_builtins(record), 'recent': list(record.recent)}


def _stored(row: Any) -> ShadowRecord:
    """Return the record of a stored one. Raises ValueError."""
    values = load(dict[str, Any], row, 'record')
    # a record of an older version has no waiver
    if missing := {*ShadowRecord.__struct_fields__} - {'waiver', *values}:
        raise ValueError(f'{min(missing)} is missing')
    recent = load(Episodes, values['recent'], 'recent')[-RECENT_EPISODES:]
    return load(ShadowRecord, {**values, 'recent': dict.fromkeys(recent)}, 'record')
