# SPDX-License-Identifier: Apache-2.0
"""What trips of this package and of peers, made in turn, say of each other. Plain; any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.telemetry.percentiles import summarize

DIRECT, DIRECT_JPEG, ROUTED, ROUTED_JPEG = 'direct raw', 'direct JPEG', 'router raw', 'router JPEG'
ZENOH, ZENOH_JPEG, ZENOH_ROUTED = 'Zenoh raw', 'Zenoh JPEG', 'Zenoh router raw'
LEROBOT, LEROBOT_SHAPED, OPENPI = 'LeRobot', 'LeRobot-shaped', 'openpi'
# of ours -> the echo of as many bytes
ECHOES = {DIRECT: 'echo of raw', DIRECT_JPEG: 'echo of JPEG'}
GOAL_LEROBOT, GOAL_FLOOR = 0.5, 1.5
# of openpi's time: median and p99
GOALS_ZENOH = {ZENOH: 0.6, ZENOH_ROUTED: 1.0}
# of openpi's time with the smallest pictures: median over ROS 2
GOAL_ROS = 1.2


@dataclass(frozen=True, slots=True)
class RoundTripTime:
    """
    The time of one trip [ms], what of it were the encoder and the decoder of pictures, and its
    stages by name, where they are known.
    """

    total_ms: float
    codec_ms: float = 0.0
    stages_ms: Mapping[str, float] = field(default_factory=dict)


# name of a way -> its trips in order, None for a lost one
Results = dict[str, list[RoundTripTime | None]]
Series = dict[str, list[float]]


def cases(name: str, facts: dict[str, object], results: Mapping[int, Results]) -> list[Case]:
    """Return the cases of one size: what each pause [ms] before a trip makes of it."""
    found = []
    for pause_ms, of_pause in results.items():
        at_rest = f'{name}, {rest_name(pause_ms)}'
        found.append(describe(at_rest, facts, of_pause))
        found += [stages(f'{at_rest}, stages of {way}', of_pause[way]) for way in ECHOES]
    return [*found, shares_of_openpi(name, results)]


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
    peers = [peer for peer in (LEROBOT, OPENPI) if peer in series]
    ours = (DIRECT, ROUTED, DIRECT_JPEG, ZENOH, ZENOH_ROUTED, ZENOH_JPEG)
    among_peers = [(mine, peer) for mine in ours if mine in series for peer in peers]
    links = [(ZENOH, DIRECT), (ZENOH_ROUTED, ROUTED)]
    among_peers += [(one, other) for one, other in links if one in series and other in series]
    return among_peers + [(mine, floor_name(mine)) for mine in ECHOES]


def compare(values: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """Return the ratio of the medians, of its parts, and of the p99; empty of too little."""
    found = ratio(values, reference)
    if found:
        found['p99'] = round(summarize(values)['p99'] / summarize(reference)['p99'], 3)
    return found


def goals(series: Series) -> dict[str, bool]:
    """Return whether this package is as fast as it is meant to be."""
    said = {}
    if LEROBOT in series:
        found = compare(series[DIRECT], series[LEROBOT])
        goal = f'{DIRECT}: median at most {GOAL_LEROBOT:g} x that of {LEROBOT}'
        said[goal] = bool(found) and found['median'] <= GOAL_LEROBOT
        said[f'{DIRECT}: p99 below that of {LEROBOT}'] = bool(found) and found['p99'] < 1
    if OPENPI in series:
        found = compare(series[DIRECT], series[OPENPI])
        said[f'{DIRECT}: median at most {GOAL_ROS:g} x that of {OPENPI}'] = (
            bool(found) and found['median'] <= GOAL_ROS
        )
        said[f'{DIRECT}: median below that of {OPENPI}'] = bool(found) and found['median'] < 1
        said[f'{DIRECT}: p99 below that of {OPENPI}'] = bool(found) and found['p99'] < 1
        for mine, most in GOALS_ZENOH.items():
            if mine in series:
                found = compare(series[mine], series[OPENPI])
                goal = f'{mine}: median and p99 at most {most:g} x those of {OPENPI}'
                said[goal] = bool(found) and max(found['median'], found['p99']) <= most
    for mine in ECHOES:
        found = ratio(series[mine], series[floor_name(mine)])
        goal = f'{mine}: median at most {GOAL_FLOOR:g} x (floor + codec)'
        said[goal] = bool(found) and found['median'] <= GOAL_FLOOR
    return said
