# SPDX-License-Identifier: Apache-2.0
"""
Aggregates the records of all runs into tallies and timelines. One thread; only reads files.

Edge, router and server each write a record of one request, so each role has tallies of its own and
no request is counted twice.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from lerobot_serve.tools.stats.aggregates import (
    count_bounded,
    DURATIONS,
    GroupKey,
    GroupStats,
    NAMES_LIMIT,
    OTHER,
    Proportion,
    QuantileSketch,
    TimeSeries,
)
from lerobot_serve.tools.traces.fields import integer, policy_names
from lerobot_serve.tools.traces.reader import ReportBytes
from lerobot_serve.tools.traces.stalls import StallDetector
from lerobot_serve.tools.traces.trace_run import RecordSource, TraceEntry, TraceQuery
from lerobot_serve.trace.format.records import (
    CanaryRecord,
    DamagedRecord,
    DropRecord,
    ExecutedRecord,
    HeaderRecord,
    IncidentRecord,
    OutcomeRecord,
    PlacementRecord,
    PoliciesRecord,
    RequestRecord,
    ShadowRecord,
    StateRecord,
    TraceRecord,
)

# number of latest episodes of a client whose slots are kept
EPISODES_KEPT = 64
EPISODE_OUTCOMES = ('success', 'failure', 'aborted')


class TraceStats:
    """The aggregate of all runs; names on timelines are slots, or a pair of policies."""

    def __init__(self) -> None:
        self.tallies: dict[GroupKey, GroupStats] = {}
        self.runs = self.lines = self.size_bytes = self.damaged = 0
        # role, slot and policy -> number of times it came into use
        self.policies: Counter[str] = Counter()
        self.canary: Counter[str] = Counter()
        self.incidents: Counter[str] = Counter()
        self.divergences: dict[str, QuantileSketch] = {}
        # role -> slots over time
        self.begun: dict[str, TimeSeries[Proportion]] = {}
        self.latency: dict[str, TimeSeries[QuantileSketch]] = {}
        self.success: dict[str, TimeSeries[Proportion]] = {}
        self.divergence: TimeSeries[QuantileSketch] = TimeSeries(QuantileSketch)

    def tally(self, key: GroupKey) -> GroupStats:
        """Return the tally of a key; keys above the limit count as OTHER."""
        if key not in self.tallies:
            if len(self.tallies) >= NAMES_LIMIT:
                key = GroupKey(key.role, OTHER, OTHER)
            self.tallies.setdefault(key, GroupStats())
        return self.tallies[key]


class _ClientState:
    """The state of one client in one run."""

    def __init__(self) -> None:
        # slot and policy
        self.placement: tuple[str, str] = '', ''
        # episode, slot and policy of the last record that has them
        self.last: tuple[str, str, str] = '', '', ''
        # episode -> its placement
        self.episodes: OrderedDict[str, tuple[str, str]] = OrderedDict()
        # latest episodes in which a person commanded
        self.helped: OrderedDict[str, None] = OrderedDict()
        # counts only
        self.stalls = StallDetector(kept=0)

    def add_helped(self, episode_id: str) -> None:
        if episode_id and episode_id not in self.helped:
            self.helped[episode_id] = None
            if len(self.helped) > EPISODES_KEPT:
                self.helped.popitem(last=False)


class _RunCollector:
    """Aggregates the records of one run."""

    def __init__(self, stats: TraceStats, role: str) -> None:
        self._stats, self._role = stats, role
        self._time_s = 0.0
        self._is_headed = False
        self._clients: dict[str, _ClientState] = {}

    def add(self, entry: TraceEntry) -> None:
        self._time_s, record = entry.time_s, entry.record
        # the most frequent first
        if isinstance(record, ExecutedRecord):
            self._executed(record)
        elif isinstance(record, RequestRecord):
            self._request(record)
        elif isinstance(record, PlacementRecord):
            self._moves(self._client(record), record)
        elif isinstance(record, StateRecord):
            self._state(record)
        elif isinstance(record, OutcomeRecord):
            self._outcome(record)
        elif isinstance(record, DropRecord):
            self._drop(record)
        elif isinstance(record, ShadowRecord):
            self._shadow(record)
        else:
            self._of_run(entry)

    def _of_run(self, entry: TraceEntry) -> None:
        """Process a record without a client."""
        record, stats = entry.record, self._stats
        if isinstance(record, HeaderRecord):
            if not self._is_headed:
                self._is_headed, self._role = True, entry.run.role
                # of a run whose oldest parts were removed
                self._policies(record)
        elif isinstance(record, PoliciesRecord):
            self._policies(record)
        elif isinstance(record, CanaryRecord):
            count_bounded(stats.canary, record.event)
        elif isinstance(record, IncidentRecord):
            count_bounded(stats.incidents, record.name)
        elif isinstance(record, DamagedRecord):
            stats.damaged += 1

    def _policies(self, record: HeaderRecord | PoliciesRecord) -> None:
        for name in policy_names(record.policies):
            count_bounded(self._stats.policies, f'{self._role} {name}')

    def _client(self, record: TraceRecord) -> _ClientState:
        client_id = record.client_id
        if client_id not in self._clients:
            self._clients[client_id] = _ClientState()
        return self._clients[client_id]

    def _tally(self, placement: tuple[str, str]) -> GroupStats:
        return self._stats.tally(GroupKey(self._role, *placement))

    def _executed(self, record: ExecutedRecord) -> None:
        client, is_played = self._client(record), record.is_played
        if is_played:
            self._moves(client, record)
        tally = self._tally(client.placement)
        if is_played:
            tally.actions += 1
            tally.oldest_age_s = max(tally.oldest_age_s, record.age_s or 0.0)
        elif record.is_by_person:
            tally.by_person += 1
            # commands of a person name no episode; the policy is asked in it all the time
            client.add_helped(record.episode_id or client.last[0])
        else:
            count_bounded(tally.fallbacks, record.rung)
        if not (is_played and client.stalls.is_playing):
            tally.stalls += client.stalls.add_record(self._time_s, record)
        tally.trips += record.cage_result != 'pass'

    def _state(self, record: StateRecord) -> None:
        client = self._client(record)
        if client.stalls.add_record(self._time_s, record):
            self._tally(client.placement).stalls += 1

    def _request(self, record: RequestRecord) -> None:
        client, slot = self._client(record), record.slot
        if slot or record.policy:
            self._moves(client, record)
        tally = self._tally(client.placement)
        tally.requests += 1
        count_bounded(tally.statuses, record.status)
        round_trip_ms = record.round_trip_ms
        durations_ms = round_trip_ms, record.inference_ms, record.queue_wait_ms
        for name, value in zip(DURATIONS, durations_ms, strict=True):
            if value is not None:
                tally.durations[name].add(value)
        if round_trip_ms is not None:
            latency = self._stats.latency.setdefault(self._role, TimeSeries(QuantileSketch))
            latency.at(self._time_s, slot).add(round_trip_ms)
        dropped = record.dropped or {}
        for reason in dropped:
            count_bounded(tally.drops, reason, max(0, integer(dropped, reason) or 0))

    def _moves(
        self, client: _ClientState, record: ExecutedRecord | RequestRecord | PlacementRecord
    ) -> None:
        """Record the slot and policy of a client, and an episode that begins there."""
        episode_id, slot, policy = current = record.episode_id, record.slot, record.policy
        if current == client.last:
            return
        client.last = current
        if not policy and client.placement[0] == slot:
            policy = client.placement[1]
        client.placement = slot, policy
        if not episode_id:
            return
        if episode_id not in client.episodes:
            self._tally(client.placement).episodes += 1
            begun = self._stats.begun.setdefault(self._role, TimeSeries(Proportion))
            begun.at(self._time_s, slot).add(True)
            if len(client.episodes) >= EPISODES_KEPT:
                client.episodes.popitem(last=False)
        client.episodes[episode_id] = client.placement

    def _outcome(self, record: OutcomeRecord) -> None:
        client = self._client(record)
        known = client.episodes.get(record.episode_id, client.placement)
        slot = record.slot or known[0]
        policy = record.policy or (known[1] if slot == known[0] else '')
        outcome, tally = record.outcome, self._tally((slot, policy))
        is_helped = record.episode_id in client.helped
        counts = tally.helped if is_helped else tally.outcomes
        count_bounded(counts, outcome if outcome in EPISODE_OUTCOMES else OTHER)
        if not is_helped:
            success = self._stats.success.setdefault(self._role, TimeSeries(Proportion))
            success.at(self._time_s, slot).add(outcome == 'success')

    def _drop(self, record: DropRecord) -> None:
        placement = self._client(record).placement if record.client_id else ('', '')
        drops = self._tally(placement).drops
        count_bounded(drops, record.reason, max(0, record.count or 0))

    def _shadow(self, record: ShadowRecord) -> None:
        divergence = record.divergence
        if divergence is None:
            return
        pair = f'{record.shadow_policy} beside {record.live_policy}'
        if pair not in self._stats.divergences and len(self._stats.divergences) >= NAMES_LIMIT:
            pair = OTHER
        self._stats.divergences.setdefault(pair, QuantileSketch()).add(divergence)
        self._stats.divergence.at(self._time_s, pair).add(divergence)


def collect_stats(
    paths: Iterable[Path | str],
    *,
    sources: Sequence[RecordSource] = (),
    on_bytes_read: ReportBytes | None = None,
) -> TraceStats:
    """Return the aggregate of all runs, and of further sources. Raises TraceError."""
    query = TraceQuery(paths, sources=sources, with_actions=False, on_bytes_read=on_bytes_read)
    stats = TraceStats()
    collectors: dict[int, _RunCollector] = {}
    for entry in query.by_run():
        number = entry.run.number
        if number not in collectors:
            collectors[number] = _RunCollector(stats, entry.run.role)
        stats.lines += 1
        collectors[number].add(entry)
    stats.runs = len(query.runs)
    stats.size_bytes = sum(run.size_bytes for run in query.runs)
    return stats
