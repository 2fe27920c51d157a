# SPDX-License-Identifier: Apache-2.0
"""
What it costs to place an episode: one that is known, a new one, a new one that is written down.

In one thread without ROS, as the dispatcher does it under its lock. A known and a new episode take
turns in both tables, so that all meet the same machine. Then millions of episodes, which are
counted, too: neither memory nor file may grow, and the split has to be what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import tempfile
import threading
import time

from benchmarks.harness.processes import memory_mib
from benchmarks.results.percentiles import microseconds
from benchmarks.results.report import Case
from lerobot_serve.router.placement.placement_table import Placement, PlacementTable
from lerobot_serve.router.placement.split import bucket, slot
from lerobot_serve.router.replicas.slot_stats import SlotStats
from lerobot_serve.router.storage.sqlite_store import FILE, SqliteStore
from lerobot_serve.router.storage.writer import StoreWriter
from lerobot_serve.telemetry.durations import summarize

ABOUT = 'one episode placed, and what is left of millions of them'
CAPACITY, SPLIT_PERCENT, ROBOTS = 10_000, 80, 997
# ten million in the usual 200 rounds
PLACES_A_ROUND, EPISODES_A_ROUND = 50, 50_000
# by then everything is as large as it gets
GROWN_AFTER = 100_000
GOAL_MS, GOAL_MB, GOAL_POINTS = 0.1, 5.0, 0.2
PARAMETERS = {
    'capacity': CAPACITY,
    'places_a_round': PLACES_A_ROUND,
    'episodes_a_round': EPISODES_A_ROUND,
    'robots': ROBOTS,
    'split_percent': SPLIT_PERCENT,
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for the cost and one for the growth. Main thread."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        return [measure_cost(rounds, Path(scratch)), measure_growth(rounds, Path(scratch))]


def measure_cost(rounds: int, folder: Path) -> Case:
    """Place known and new episodes in full tables with and without a store."""
    with writing(folder) as writer:
        series_ms = place_often(rounds, writer)
    worst = max(summarize(values)['p99'] for values in series_ms.values())
    return Case(
        'cost',
        parameters=microseconds(series_ms),
        series_ms=series_ms,
        goals={f'p99 of every kind under {GOAL_MS * 1000:g} us': worst < GOAL_MS},
    )


def place_often(rounds: int, writer: StoreWriter) -> dict[str, list[float]]:
    """Return what placing each kind of episode takes [ms]."""
    tables = {'': PlacementTable(CAPACITY), ', store': PlacementTable(CAPACITY, writer=writer)}
    for table in tables.values():
        for number in range(CAPACITY):
            place(table, f'episode_{number}')
    series_ms: dict[str, list[float]] = {}
    for number in range(CAPACITY, CAPACITY + rounds * PLACES_A_ROUND):
        for suffix, table in tables.items():
            # the second time it is known
            for kind in ('new', 'known'):
                cost_ms = place_ms(table, f'episode_{number}')
                series_ms.setdefault(kind + suffix, []).append(cost_ms)
    return series_ms


@contextmanager
def writing(folder: Path) -> Iterator[StoreWriter]:
    """Give the writer of a new store, whose thread runs meanwhile."""
    (folder / FILE).unlink(missing_ok=True)
    writer, stop = (
        StoreWriter(SqliteStore(folder, CAPACITY, 'now'), print, print),
        threading.Event(),
    )
    thread = threading.Thread(target=writer.run, args=[stop], name='store')
    thread.start()
    try:
        yield writer
    finally:
        stop.set()
        writer.wake()
        thread.join()
        writer.close()


def place(table: PlacementTable, episode_id: str) -> Placement:
    """Keep a known episode, or place a new one by the split."""
    table.split_percent = SPLIT_PERCENT
    kept = table.keep(episode_id)
    if kept:
        return kept
    slot_name = slot(bucket(episode_id), SPLIT_PERCENT)
    return table.add(episode_id, episode_id, slot_name)


def place_ms(table: PlacementTable, name: str) -> float:
    begin_ns = time.perf_counter_ns()
    place(table, name)
    return (time.perf_counter_ns() - begin_ns) / 1e6


def measure_growth(rounds: int, folder: Path) -> Case:
    """Place millions of episodes in one table and count them."""
    with writing(folder) as writer:
        return _measure_growth(rounds, folder, writer)


def _measure_growth(rounds: int, folder: Path, writer: StoreWriter) -> Case:
    path, episodes = folder / FILE, rounds * EPISODES_A_ROUND
    table, stats = PlacementTable(CAPACITY, writer=writer), SlotStats(('a', 'b'), CAPACITY)
    largest_mb, grown_mb = 0.0, 0.0
    for number in range(episodes):
        robot = f'robot_{number % ROBOTS}'
        placement = place(table, f'{robot}-{number}')
        stats.record_request(robot, placement, time.monotonic_ns())
        if number % CAPACITY == 0:
            largest_mb = max(largest_mb, path.stat().st_size / 2**20)
        if number == GROWN_AFTER:
            grown_mb = memory_mib(os.getpid())
    writer.flush()
    more_mb = memory_mib(os.getpid()) - grown_mb
    error_points = abs(stats.slot('a').requests / episodes * 100 - SPLIT_PERCENT)
    return Case(
        f'{episodes} episodes',
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
