# SPDX-License-Identifier: Apache-2.0
"""What becomes of many robots that ask one server, whoever's it is. Plain; any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.comparison import compare, OPENPI
from benchmarks.results.report import Case

OURS, ZENOH = 'this package', 'this package over Zenoh'
LOCAL = 'this package on the local path'
OWN = OURS, ZENOH, LOCAL
GOAL_SHARE = 0.9
# processor time of the server, at most so many times that of openpi's
CPU_GOALS = {ZENOH: 1.0, LOCAL: 1.5}


@dataclass(frozen=True, slots=True)
class FleetReplies:
    """What robots that asked for a while were answered: a list of times for each robot [ms]."""

    latencies_ms: Sequence[Sequence[float]]
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class MeasuredBlock:
    """Some seconds of it, with the CPU time of both processes, and the server's memory."""

    asked: FleetReplies
    seconds: float
    server_s: float
    robots_s: float
    server_mb: float


def parse_replies(lived: Iterable[Mapping]) -> FleetReplies:
    """Return what a peer's robots said; see `fleet.Lived`."""
    latencies_ms, counts = [], Counter()
    for one in lived:
        latencies_ms.append(one['latencies_ms'])
        counts.update(sent=one['sent'], passed_over=one['passed_over'], **one['failures'])
    return FleetReplies(latencies_ms, counts)


def cases(robots: int, blocks: Mapping[str, Sequence[MeasuredBlock]]) -> list[Case]:
    """Return a case for each kind of robots; this package's are compared with the peers'."""
    every = {who: describe(case_name(robots, who), own) for who, own in blocks.items()}
    trips = {who: case.series_ms['round trip'] for who, case in every.items()}
    for mine in every.keys() & set(OWN):
        every[mine].ratios = {
            f'round trip / {who}': compare(trips[mine], other)
            for who, other in trips.items()
            if who not in OWN
        }
        every[mine].goals = goals(every[mine])
    for mine, most in CPU_GOALS.items():
        if {mine, OPENPI} <= every.keys():
            every[mine].goals |= cost_goals(every[mine], every[OPENPI], most)
    return list(every.values())


def case_name(robots: int, who: str) -> str:
    """Return how a case is called."""
    return f'{robots} robot{"s" * (robots > 1)}: {who}'


def describe(name: str, blocks: Sequence[MeasuredBlock]) -> Case:
    """Return the figures of one kind of robots."""
    answered = by_robot(blocks)
    chunks, seconds = sum(answered), sum(block.seconds for block in blocks)
    server_s, robots_s = (
        sum(getattr(block, who) for block in blocks) for who in ('server_s', 'robots_s')
    )
    parameters = {
        'chunks_per_s': round(chunks / seconds, 2),
        'worst_robots_share_of_the_mean': round(worst_share(answered), 3),
        'server_share_of_a_core': round(server_s / seconds, 3),
        'server_percent_of_a_core_a_robot': round(100 * server_s / seconds / len(answered), 3),
        'server_cpu_ms_a_chunk': round(1e3 * server_s / chunks, 3) if chunks else 'no chunk',
        'robots_share_of_a_core': round(robots_s / seconds, 3),
        'server_mb': round(blocks[-1].server_mb, 1),
    }
    counts = Counter(answered=chunks)
    for block in blocks:
        counts.update(block.asked.counts)
    round_trips_ms = [ms for block in blocks for own in block.asked.latencies_ms for ms in own]
    return Case(name, parameters, dict(counts), {'round trip': round_trips_ms})


def by_robot(blocks: Sequence[MeasuredBlock]) -> list[int]:
    """Return how many chunks each robot got."""
    return [
        sum(map(len, own)) for own in zip(*(b.asked.latencies_ms for b in blocks), strict=True)
    ]


def worst_share(answered: Sequence[int]) -> float:
    """Return what the robot that got least got of the mean, 0 when nobody got anything."""
    total = sum(answered)
    return min(answered) * len(answered) / total if total else 0.0


def goals(ours: Case) -> dict[str, bool]:
    """Return whether this package's robots got what they should."""
    share = ours.parameters['worst_robots_share_of_the_mean']
    said = {
        'every chunk comes': ours.counts['answered'] == ours.counts['sent'],
        f'no robot gets less than {GOAL_SHARE:.0%} of the mean': share >= GOAL_SHARE,
    }
    for other, found in ours.ratios.items():
        who = other.rpartition('/ ')[2]
        if found:
            said[f'p99 below that of {who}'] = found['p99'] < 1
    return said


def cost_goals(ours: Case, openpi: Case, most: float) -> dict[str, bool]:
    """Return whether it costs no more time than openpi's websocket, and how much processor."""
    found = ours.ratios[f'round trip / {OPENPI}']
    mine, theirs = (case.parameters['server_share_of_a_core'] for case in (ours, openpi))
    return {
        f'median at most that of {OPENPI}': bool(found) and found['median'] <= 1,
        f'processor time of the server at most {most:g} x that of {OPENPI}': mine <= most * theirs,
    }
