# SPDX-License-Identifier: Apache-2.0
"""What trips of this package and of peers, made in turn, say of each other. Plain; any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
import math
import time
from typing import TypeVar

from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.telemetry.durations import summarize

DIRECT, DIRECT_JPEG, ROUTED, ROUTED_JPEG = 'direct raw', 'direct JPEG', 'router raw', 'router JPEG'
ZENOH, ZENOH_JPEG, ZENOH_ROUTED = 'Zenoh raw', 'Zenoh JPEG', 'Zenoh router raw'
LOCAL, LOCAL_ROUTED = 'local raw', 'local router raw'
# a program with PolicyClient, which takes the local path
CLIENT = 'Python client'
PAGE = 'memfd page'
LEROBOT, LEROBOT_SHAPED, OPENPI = 'LeRobot', 'LeRobot-shaped', 'openpi'
# of ours -> the echo of as many bytes
ECHOES = {DIRECT: 'echo of raw', DIRECT_JPEG: 'echo of JPEG'}
GOAL_FLOOR = 1.5


@dataclass(frozen=True, slots=True)
class RoundTripTime:
    """
    The time of one trip [ms], what of it were the encoder and the decoder of pictures, and its
    stages by name, where they are known.
    """

    total_ms: float
    codec_ms: float = 0.0
    stages_ms: Mapping[str, float] = field(default_factory=dict)


TripT = TypeVar('TripT')
# name of a way -> its trips in order, None for a lost one
Results = dict[str, list[RoundTripTime | None]]
Series = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Goal:
    """That figures of a way are at most so many times those of a peer, or below them."""

    way: str
    peer: str
    figures: tuple[str, ...]
    most: float = 0.0

    @property
    def name(self) -> str:
        those = 'those' if len(self.figures) > 1 else 'that'
        most = f'at most {self.most:g} x {those}' if self.most else f'below {those}'
        return f'{self.way}: {" and ".join(self.figures)} {most} of {self.peer}'

    def holds(self, series: Series) -> bool:
        """Return whether it is reached; not without trips."""
        found = compare(series[self.way], series[self.peer])
        worst = max(found[figure] for figure in self.figures) if found else math.inf
        return worst <= self.most if self.most else worst < 1


GOALS = (
    Goal(DIRECT, LEROBOT, ('median',), 0.5),
    Goal(DIRECT, LEROBOT, ('p99',)),
    # with the smallest pictures
    Goal(DIRECT, OPENPI, ('median',), 1.2),
    Goal(DIRECT, OPENPI, ('median',)),
    Goal(DIRECT, OPENPI, ('p99',)),
    Goal(LOCAL, OPENPI, ('median', 'p99'), 0.4),
    Goal(LOCAL_ROUTED, OPENPI, ('median', 'p99'), 0.6),
    Goal(LOCAL, PAGE, ('median',), 3.0),
    Goal(CLIENT, OPENPI, ('median', 'p99'), 1.0),
    Goal(ZENOH, OPENPI, ('median', 'p99'), 0.6),
    Goal(ZENOH_ROUTED, OPENPI, ('median', 'p99'), 1.0),
)


def cases(name: str, facts: dict[str, object], results: Mapping[int, Results]) -> list[Case]:
    """Return the cases of one size: what each pause [ms] before a trip makes of it."""
    found = []
    for pause_ms, of_pause in results.items():
        at_rest = f'{name}, {rest_name(pause_ms)}'
        found.append(describe(at_rest, facts, of_pause))
        found += [stages(f'{at_rest}, stages of {way}', of_pause[way]) for way in ECHOES]
    return [*found, shares_of_openpi(name, results)]


def alternate(
    ways: Mapping[str, Callable[[], TripT]], rounds: int, pauses_ms: Sequence[int] = (0,)
) -> dict[int, dict[str, list[TripT]]]:
    """Make the rounds, after each pause one trip on each way. Raises what a way raises."""
    results: dict[int, dict[str, list[TripT]]] = {
        pause: {name: [] for name in ways} for pause in pauses_ms
    }
    for _ in range(rounds):
        for pause_ms, of_pause in results.items():
            for name, way in ways.items():
                time.sleep(pause_ms / 1000)
                of_pause[name].append(way())
    return results


def rest_name(pause_ms: int) -> str:
    """Return in words how long the machine rests before each trip."""
    return f'each after {pause_ms} ms' if pause_ms else 'in a loop'


def stages(name: str, trips: Sequence[RoundTripTime | None]) -> Case:
    """Return the time of each stage of the trips on one way."""
    answered = [took.stages_ms for took in trips if took]
    names = answered[0] if answered else ()
    return Case(name, series_ms={stage: [took[stage] for took in answered] for stage in names})


def shares_of_openpi(name: str, results: Mapping[int, Results]) -> Case:
    """Return p50 and p99 of each way as a share of openpi's, after each pause."""
    shares: dict[str, dict[str, float]] = {}
    for pause_ms, of_pause in results.items():
        series = {way: times_ms(trips) for way, trips in of_pause.items()}
        for way, took_ms in series.items():
            found = compare(took_ms, series.get(OPENPI, ()))
            if found and way != OPENPI:
                rest = rest_name(pause_ms)
                shares.setdefault(way, {})[f'p50 {rest}'] = found['median']
                shares[way][f'p99 {rest}'] = found['p99']
    return Case(f"{name}, of openpi's time", ratios=shares)


def times_ms(trips: Sequence[RoundTripTime | None]) -> list[float]:
    return [took.total_ms for took in trips if took]


def describe(name: str, facts: dict[str, object], results: Results) -> Case:
    """Return the case with its ratios and goals."""
    series = {way: times_ms(trips) for way, trips in results.items()}
    for way, floor in ECHOES.items():
        series[floor_name(way)] = floor_and_codec(results[way], results[floor])
    counts = {f'lost by {way}': trips.count(None) for way, trips in results.items()}
    rounds = len(results[DIRECT])
    compared = {f'{a} / {b}': compare(series[a], series[b]) for a, b in pairs(series)}
    return Case(name, facts, {'rounds': rounds, **counts}, series, compared, goals(series))


def floor_name(way: str) -> str:
    """Return how the least time that a way could take is called."""
    return f'floor + codec of {way}'


def floor_and_codec(
    trips: Sequence[RoundTripTime | None], echoes: Sequence[RoundTripTime | None]
) -> list[float]:
    """Return the least that each round could have taken, where both were answered."""
    rounds = zip(trips, echoes, strict=True)
    return [echo.total_ms + took.codec_ms for took, echo in rounds if took and echo]


def pairs(series: Series) -> list[tuple[str, str]]:
    """Return who is set against whom."""
    ours = (DIRECT, ROUTED, DIRECT_JPEG, ZENOH, ZENOH_ROUTED, ZENOH_JPEG, LOCAL, LOCAL_ROUTED)
    ours += (CLIENT,)
    wanted = [(mine, peer) for mine in ours for peer in (LEROBOT, OPENPI)]
    wanted += [(ZENOH, DIRECT), (ZENOH_ROUTED, ROUTED), (LOCAL, PAGE)]
    wanted += [(mine, floor_name(mine)) for mine in ECHOES]
    return [(one, other) for one, other in wanted if one in series and other in series]


def compare(values: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """Return the ratio of the medians, of its parts, and of the p99; empty of too little."""
    found = ratio(values, reference)
    if found:
        found['p99'] = round(summarize(values)['p99'] / summarize(reference)['p99'], 3)
    return found


def goals(series: Series) -> dict[str, bool]:
    """Return whether this package is as fast as it is meant to be."""
    said = {
        goal.name: goal.holds(series)
        for goal in GOALS
        if goal.way in series and goal.peer in series
    }
    for mine in ECHOES:
        found = ratio(series[mine], series[floor_name(mine)])
        goal = f'{mine}: median at most {GOAL_FLOOR:g} x (floor + codec)'
        said[goal] = bool(found) and found['median'] <= GOAL_FLOOR
    return said
