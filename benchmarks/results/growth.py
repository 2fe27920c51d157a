# SPDX-License-Identifier: Apache-2.0
"""
A run in windows: what each process spent in them, whether that grows with time or with the number
of robots, and what was seen of fleets of several sizes, as cases. Plain; any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.results.report import Case

# counted for requests that were answered all the same, or were counted before
NO_LOSS = ('late_reply', 'failed_over', 'unanswered', 'no_episode_id')
# a process that holds so much more at the end of a run does not grow
GROWN_MB = 5.0


@dataclass(frozen=True, slots=True)
class Window:
    """
    A part of a run. `cpu_s` is what each process used of its processors in it, `memory_mb` what
    it held at its end, where that is its own.
    """

    seconds: float
    latencies_ms: Sequence[float]
    cpu_s: dict[str, float]
    memory_mb: dict[str, float]

    @property
    def cpu_ms(self) -> dict[str, float]:
        """What one answered request cost each process; nan when none was answered."""
        count = len(self.latencies_ms) or float('nan')
        return {who: 1000 * seconds / count for who, seconds in self.cpu_s.items()}

    @property
    def p99_ms(self) -> float:
        """Return nan when nothing was answered."""
        return float(np.percentile(self.latencies_ms, 99)) if len(self.latencies_ms) else np.nan


Windows = Sequence[Window]


def all_latencies_ms(windows: Windows) -> np.ndarray:
    """Return those of all windows, in order."""
    return np.concatenate([np.asarray(window.latencies_ms, float) for window in windows])


def cpu_ms(windows: Windows, who: str) -> list[float]:
    """Return what a request cost a process, in each window."""
    return [window.cpu_ms[who] for window in windows]


def share_of_a_core(windows: Windows, who: str) -> float:
    """Return how many processors a process kept busy."""
    return sum(each.cpu_s[who] for each in windows) / sum(each.seconds for each in windows)


def thirds(windows: Windows) -> tuple[Windows, Windows]:
    """Return the first and the last third. Raises ValueError for fewer than three windows."""
    length = len(windows) // 3
    if not length:
        raise ValueError(f'{len(windows)} windows have no thirds; measure three at least')
    return windows[:length], windows[-length:]


def is_not_above(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether the median of `after` lies within what was seen `before`."""
    # nan, for nothing was answered, is no good news
    return bool(np.median(after) <= max(before))


def steady_goals(windows: Windows) -> dict[str, bool]:
    """Return whether latency, processor time and memory are in the end what they were."""
    before, after = thirds(windows)
    p99s_ms = ([window.p99_ms for window in third] for third in (before, after))
    goals = {'p99 stays': is_not_above(*p99s_ms)}
    for who in windows[0].cpu_s:
        stays = is_not_above(cpu_ms(before, who), cpu_ms(after, who))
        goals[f'processor time of {who} stays'] = stays
    for who in windows[0].memory_mb:
        grown_mb = after[-1].memory_mb[who] - before[-1].memory_mb[who]
        goals[f'memory of {who} stays within {GROWN_MB:g} MB'] = grown_mb <= GROWN_MB
    return goals


def ratio_of_medians(before: Sequence[float], after: Sequence[float]) -> float:
    """Return how many times as much `after` is, nan where `before` is nothing."""
    first = float(np.median(before))
    return round(float(np.median(after)) / first, 3) if first else float('nan')


def steady_ratios(windows: Windows) -> dict[str, float]:
    """Return how many times as much the last third is as the first, by medians of windows."""
    before, after = thirds(windows)
    p99s_ms = ([window.p99_ms for window in third] for third in (before, after))
    ratios = {'p99': ratio_of_medians(*p99s_ms)}
    for who in windows[0].cpu_s:
        ratios[f'processor time of {who}'] = ratio_of_medians(
            cpu_ms(before, who), cpu_ms(after, who)
        )
    for who in windows[0].memory_mb:
        ratios[f'memory of {who}'] = ratio_of_medians(
            *([window.memory_mb[who] for window in third] for third in (before, after))
        )
    return ratios


@dataclass(slots=True)
class FleetRun:
    """What was seen of a fleet of one size; `counts` holds what robots and router counted."""

    windows: list[Window] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def uncounted(counts: Mapping[str, int], router_drops: Mapping[str, int]) -> int:
    """Return how many requests came to an end that nobody counted."""
    unknown = counts['sent'] - counts['answered'] - counts['lost']
    told = sum(count for reason, count in router_drops.items() if reason not in NO_LOSS)
    # what came late was not lost on its way
    return abs(unknown) + max(0, counts['lost'] - counts['late'] - told)


def fleet_case(robots: int, run: FleetRun, alone: Window) -> Case:
    """Return the case of one fleet; `alone` is what router and servers need without robots."""
    windows, latencies_ms = run.windows, all_latencies_ms(run.windows)
    seconds = sum(window.seconds for window in windows)
    parameters: dict[str, object] = {
        'seconds': round(seconds, 1),
        'windows': len(windows),
        'chunks_per_s': round(len(latencies_ms) / seconds, 1),
    }
    series_ms = {'round trip': latencies_ms}
    for who in windows[-1].cpu_s:
        share = share_of_a_core(windows, who)
        parameters[f'{who}_share_of_a_core'] = round(share, 3)
        parameters[f'{who}_percent_of_a_core_a_robot'] = round(100 * share / robots, 3)
        if who in alone.memory_mb:
            held_mb = windows[-1].memory_mb[who]
            parameters[f'{who}_mb'] = round(held_mb, 1)
            parameters[f'{who}_mb_a_robot'] = round((held_mb - alone.memory_mb[who]) / robots, 3)
        series_ms[f'processor time of {who} a request'] = cpu_ms(windows, who)
    goals = {
        'nothing is lost': run.counts['lost'] == 0,
        'nothing is lost uncounted': run.counts['uncounted'] == 0,
    }
    return Case(f'{robots} robots', parameters, dict(run.counts), series_ms, goals=goals)


def steady_case(robots: int, run: FleetRun) -> Case:
    """Return whether a fleet costs in the end what it cost in the beginning."""
    names = 'first third', 'last third'
    series_ms = {
        f'round trip, {name}': all_latencies_ms(third)
        for name, third in zip(names, thirds(run.windows), strict=True)
    }
    return Case(
        f'{robots} robots, in the course of time',
        {'windows': len(run.windows)},
        series_ms=series_ms,
        ratios={'last third/first third, medians of windows': steady_ratios(run.windows)},
        goals=steady_goals(run.windows),
    )


def growth_case(runs: Mapping[int, FleetRun], alone: Window) -> Case:
    """Return how a robot of the largest fleet compares with one of the smallest."""
    few, many = min(runs), max(runs)
    before, after = runs[few].windows, runs[many].windows
    p99s_ms = [[window.p99_ms for window in windows] for windows in (before, after)]
    ratios, goals = {'p99 of the round trip': ratio_of_medians(*p99s_ms)}, {}
    parameters: dict[str, object] = {}
    for who in alone.cpu_s:
        spent_ms = cpu_ms(before, who), cpu_ms(after, who)
        ratios[f'processor time of {who}'] = ratio_of_medians(*spent_ms)
        goals[f'processor time of {who}: linear or better'] = is_not_above(*spent_ms)
        parameters[f'{who}_share_of_a_core_without_robots'] = round(
            share_of_a_core([alone], who), 3
        )
    for who, held_mb in alone.memory_mb.items():
        few_mb, many_mb = (
            (runs[count].windows[-1].memory_mb[who] - held_mb) / count for count in (few, many)
        )
        goals[f'memory of {who}: linear or better'] = many_mb <= few_mb
        parameters[f'{who}_mb_without_robots'] = round(held_mb, 1)
    name = f'a robot of {many}/a robot of {few}'
    return Case(f'from {few} to {many} robots', parameters, {}, {}, {name: ratios}, goals)
