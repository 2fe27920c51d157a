# SPDX-License-Identifier: Apache-2.0
"""
All records of all runs into tallies and timelines. One thread; reads files, writes none.

Edge, router and server each write a record of one request, so each role has tallies of its own:
nothing is counted twice.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from pathlib import Path

from lerobot_serve.tools.stats.group import (
    count_bounded,
    DURATIONS,
    GroupKey,
    GroupStats,
    NAMES_LIMIT,
    OTHER,
)
from lerobot_serve.tools.stats.quantile_sketch import QuantileSketch
from lerobot_serve.tools.stats.time_series import Proportion, TimeSeries
from lerobot_serve.tools.traces.fields import integer, number, policy_names, Record, table, text
from lerobot_serve.tools.traces.lean_reader import read_without_actions
from lerobot_serve.tools.traces.runs import find_runs, TimedRecords
from lerobot_serve.tools.traces.trace_run import wall_offset_s

# so many episodes of a client may be told of in turn
EPISODES_KEPT = 64
# why playing ended when somebody wanted it to
INTENDED_ENDS = ('paused', 'no_episode', 'given_up', 'cleared')
EPISODE_OUTCOMES = ('success', 'failure', 'aborted')


class TraceStats:
    """Everything that was summed up; names on timelines are slots, or a pair of policies."""

    def __init__(self) -> None:
        self.tallies: dict[GroupKey, GroupStats] = {}
        self.runs = self.lines = self.size_bytes = self.damaged = 0
        # role, slot and policy -> how often it came into use
        self.policies: Counter[str] = Counter()
        self.canary: Counter[str] = Counter()
        self.incidents: Counter[str] = Counter()
        self.divergences: dict[str, QuantileSketch] = {}
        # role -> slots over time
        self.begun: dict[str, TimeSeries[Proportion]] = {}
        self.latency: dict[str, TimeSeries[QuantileSketch]] = {}
        self.success: TimeSeries[Proportion] = TimeSeries(Proportion)
        self.divergence: TimeSeries[QuantileSketch] = TimeSeries(QuantileSketch)

    def tally(self, key: GroupKey) -> GroupStats:
        """Return the tally of a key; one too many counts as OTHER."""
        if key not in self.tallies:
            if len(self.tallies) >= NAMES_LIMIT:
                key = GroupKey(key.role, OTHER, OTHER)
            self.tallies.setdefault(key, GroupStats())
        return self.tallies[key]


class _ClientState:
    """What one run tells of a client now."""

    def __init__(self) -> None:
        self.where: tuple[str, str] = '', ''
        self.is_playing = False
        # episode, slot and policy that were told of last
        self.told: tuple[str, str, str] = '', '', ''
        # episode -> where it is
        self.episodes: OrderedDict[str, tuple[str, str]] = OrderedDict()


class _RunCollector:
    """Sums up one run."""

    def __init__(self, stats: TraceStats) -> None:
        self._stats = stats
        self._role = ''
        self._offset_s = self._time_s = 0.0
        self._clients: dict[str, _ClientState] = {}
        self._see = {
            'executed': self._executed,
            'request': self._request,
            'placement': self._decision,
            'outcome': self._outcome,
            'drop': self._drop,
            'shadow': self._shadow,
            'policies': self._policies,
            'canary': lambda record: count_bounded(stats.canary, text(record, 'event')),
            'incident': lambda record: count_bounded(stats.incidents, text(record, 'name')),
        }

    def see(self, record: Record) -> None:
        mono_ns = integer(record, 'mono_ns')
        if mono_ns is not None and abs(mono_ns) < 1 << 63:
            self._time_s = self._offset_s + mono_ns / 1e9
        kind = record['kind']
        if kind in self._see:
            self._see[kind](record)
        elif kind == 'damaged':
            self._stats.damaged += 1
        elif kind == 'header' and not self._role:
            self._role = text(record, 'role')
            self._offset_s = wall_offset_s(record)
            # of a run whose oldest parts are gone
            self._policies(record)

    def _policies(self, record: Record) -> None:
        for name in policy_names(record):
            count_bounded(self._stats.policies, f'{self._role} {name}')

    def _client(self, record: Record) -> _ClientState:
        return self._clients.setdefault(text(record, 'client_id'), _ClientState())

    def _tally(self, where: tuple[str, str]) -> GroupStats:
        return self._stats.tally(GroupKey(self._role, *where))

    def _executed(self, record: Record) -> None:
        client, rung = self._client(record), text(record, 'rung')
        is_playing = rung == 'policy'
        if is_playing:
            self._moves(client, record, text(record, 'slot'), text(record, 'policy'))
        tally = self._tally(client.where)
        if is_playing:
            tally.actions += 1
            tally.oldest_age_s = max(tally.oldest_age_s, number(record, 'age_s') or 0.0)
        else:
            count_bounded(tally.fallbacks, rung)
            is_wanted = text(record, 'reason').endswith(INTENDED_ENDS)
            tally.stalls += client.is_playing and not is_wanted
        tally.trips += text(record, 'cage_result') != 'pass'
        client.is_playing = is_playing

    def _request(self, record: Record) -> None:
        client, slot = self._client(record), text(table(record, 'routing'), 'slot')
        policy = text(record, 'policy')
        if slot or policy:
            self._moves(client, record, slot, policy)
        tally = self._tally(client.where)
        tally.requests += 1
        count_bounded(tally.statuses, text(record, 'status'))
        for name in DURATIONS:
            value = number(record, name)
            if value is not None:
                tally.durations[name].add(value)
        round_trip_ms = number(record, 'round_trip_ms')
        if round_trip_ms is not None:
            latency = self._stats.latency.setdefault(self._role, TimeSeries(QuantileSketch))
            latency.at(self._time_s, slot).add(round_trip_ms)
        for reason in table(record, 'dropped'):
            count_bounded(tally.drops, reason, max(0, integer(record['dropped'], reason) or 0))

    def _decision(self, record: Record) -> None:
        client = self._client(record)
        self._moves(client, record, text(record, 'slot'), text(record, 'policy'))

    def _moves(self, client: _ClientState, record: Record, slot: str, policy: str) -> None:
        """Note where a client is now, and an episode that begins there."""
        episode_id = text(record, 'episode_id')
        told = episode_id, slot, policy
        if told == client.told:
            return
        client.told = told
        if not policy and client.where[0] == slot:
            policy = client.where[1]
        client.where = slot, policy
        if not episode_id:
            return
        if episode_id not in client.episodes:
            self._tally(client.where).episodes += 1
            begun = self._stats.begun.setdefault(self._role, TimeSeries(Proportion))
            begun.at(self._time_s, slot).add(True)
            if len(client.episodes) >= EPISODES_KEPT:
                client.episodes.popitem(last=False)
        client.episodes[episode_id] = client.where

    def _outcome(self, record: Record) -> None:
        client = self._client(record)
        known = client.episodes.get(text(record, 'episode_id'), client.where)
        slot = text(record, 'slot') or known[0]
        policy = text(record, 'policy') or (known[1] if slot == known[0] else '')
        outcome = text(record, 'outcome')
        count_bounded(
            self._tally((slot, policy)).outcomes, outcome if outcome in EPISODE_OUTCOMES else OTHER
        )
        self._stats.success.at(self._time_s, slot).add(outcome == 'success')

    def _drop(self, record: Record) -> None:
        where = self._client(record).where if text(record, 'client_id') else ('', '')
        drops = self._tally(where).drops
        count_bounded(drops, text(record, 'reason'), max(0, integer(record, 'count') or 0))

    def _shadow(self, record: Record) -> None:
        divergence = number(record, 'divergence')
        if divergence is None:
            return
        pair = f'{text(record, "shadow_policy")} beside {text(record, "live_policy")}'
        if pair not in self._stats.divergences and len(self._stats.divergences) >= NAMES_LIMIT:
            pair = OTHER
        self._stats.divergences.setdefault(pair, QuantileSketch()).add(divergence)
        self._stats.divergence.at(self._time_s, pair).add(divergence)


def collect_stats(paths: Iterable[Path | str], more: Iterable[TimedRecords] = ()) -> TraceStats:
    """
    Return all runs summed up, and `more` that are no files of their own. Raises TraceError.
    """
    stats = TraceStats()
    for path in find_runs(paths):
        run = _RunCollector(stats)
        stats.runs += 1
        for size, record in read_without_actions(path):
            stats.lines += 1
            stats.size_bytes += size
            run.see(record)
    for several in more:
        _collect_merged(stats, several)
    return stats


def _collect_merged(stats: TraceStats, several: TimedRecords) -> None:
    runs: dict[int, _RunCollector] = {}
    for _, of, record in several:
        if of.number not in runs:
            runs[of.number] = _RunCollector(stats)
            stats.runs += 1
        stats.lines += 1
        runs[of.number].see(record)
