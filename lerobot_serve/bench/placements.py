"""
What it costs to place an episode: one that is known, a new one, a new one that is written down.

In one thread without ROS, as the dispatcher does it under its lock. A known and a new episode take
turns in both tables, so that all meet the same machine. Then a million episodes, to see that
neither memory nor file grow and that the split is what was asked for.
"""

from __future__ import annotations

from collections import Counter
import os
from pathlib import Path
import tempfile
import time

from lerobot_serve.bench.report import Case
from lerobot_serve.bench.serving import memory_mb
from lerobot_serve.bench.statistics import spread
from lerobot_serve.router.journal import Journal
from lerobot_serve.router.sticky import StickyTable

ABOUT = 'one episode placed, and what is left of a million of them'
CAPACITY, EPISODES, SPLIT_PERCENT = 10_000, 1_000_000, 80
PLACES_A_ROUND = 50
# by then everything is as large as it gets
GROWN_AFTER = 100_000
GOAL_MS, GOAL_MB, GOAL_POINTS = 0.1, 5.0, 0.2
PARAMETERS = {
    'capacity': CAPACITY,
    'places_a_round': PLACES_A_ROUND,
    'split_percent': SPLIT_PERCENT,
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for the cost and one for the growth. Main thread."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        return [measure_cost(rounds, Path(scratch)), measure_growth(Path(scratch))]


def measure_cost(rounds: int, folder: Path) -> Case:
    """Place known and new episodes in full tables with and without a journal."""
    journal = Journal(folder / 'cost.jsonl', CAPACITY, print)
    tables = {'': StickyTable(CAPACITY), ', journal': StickyTable(CAPACITY, journal)}
    for table in tables.values():
        for number in range(CAPACITY):
            table.place(f'episode_{number}', 'request', SPLIT_PERCENT)
    series_ms: dict[str, list[float]] = {}
    for number in range(CAPACITY, CAPACITY + rounds * PLACES_A_ROUND):
        for suffix, table in tables.items():
            # the second time it is known
            for kind in ('new', 'known'):
                cost_ms = place_ms(table, f'episode_{number}')
                series_ms.setdefault(kind + suffix, []).append(cost_ms)
    journal.close()
    worst = max(spread(values)['p99'] for values in series_ms.values())
    return Case(
        'cost',
        parameters={f'{k} [us]': microseconds(values) for k, values in series_ms.items()},
        series_ms=series_ms,
        goals={f'p99 of every kind under {GOAL_MS * 1000:g} us': worst < GOAL_MS},
    )


def place_ms(table: StickyTable, name: str) -> float:
    begin_ns = time.perf_counter_ns()
    table.place(name, 'request', SPLIT_PERCENT)
    return (time.perf_counter_ns() - begin_ns) / 1e6


def microseconds(values_ms: list[float]) -> str:
    """Return median and p99, in a unit in which one can read them."""
    figures = spread(values_ms)
    return f'{figures["p50"] * 1000:.1f} (p99 {figures["p99"] * 1000:.1f})'


def measure_growth(folder: Path) -> Case:
    """Place a million episodes in one table."""
    path = folder / 'growth.jsonl'
    journal = Journal(path, CAPACITY, print)
    table, slots = StickyTable(CAPACITY, journal), Counter()
    largest_mb, grown_mb = 0.0, 0.0
    for number in range(EPISODES):
        slots[table.place(f'robot_{number % 997}-{number}', '', SPLIT_PERCENT).slot] += 1
        if number % CAPACITY == 0:
            largest_mb = max(largest_mb, path.stat().st_size / 2**20)
        if number == GROWN_AFTER:
            grown_mb = memory_mb(os.getpid())
    journal.close()
    more_mb = memory_mb(os.getpid()) - grown_mb
    error_points = abs(slots['a'] / EPISODES * 100 - SPLIT_PERCENT)
    return Case(
        f'{EPISODES} episodes',
        parameters={
            'share_error_points': round(error_points, 3),
            'memory_mb': round(grown_mb, 1),
            f'more_mb_after_{GROWN_AFTER}': round(more_mb, 2),
            'largest_file_mb': round(largest_mb, 2),
        },
        goals={
            f'share within {GOAL_POINTS:g} points': error_points < GOAL_POINTS,
            f'memory grows by less than {GOAL_MB:g} MB': more_mb < GOAL_MB,
            f'file under {GOAL_MB:g} MB': largest_mb < GOAL_MB,
        },
    )
