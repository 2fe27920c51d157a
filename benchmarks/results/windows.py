# SPDX-License-Identifier: Apache-2.0
"""
A run in windows: what each process spent in them, and whether that grows with time or with the
number of robots. Plain; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
