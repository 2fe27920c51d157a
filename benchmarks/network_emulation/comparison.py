# SPDX-License-Identifier: Apache-2.0
"""
The ways in which a robot of this package sends its pictures over a link, and what the turns say of
them and of its peers. Plain; any thread.
"""

from __future__ import annotations

from benchmarks.network_emulation.rounds import ContenderResults
from benchmarks.peers.comparison import LEROBOT, OPENPI
from benchmarks.peers.peer_process import Way
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.contract.schema import Codec
from lerobot_serve.telemetry.durations import summarize

# after which a trip is lost, with everybody
ANSWER_S = 20.0
DEFAULT, ZENOH, ZENOH_RAW = 'JPEG 90', 'Zenoh JPEG 90', 'Zenoh raw'
ZENOH_WAN, ZENOH_DOWNSCALED = 'Zenoh JPEG 80', 'Zenoh JPEG 80, downscaled'
ENCODINGS = {
    DEFAULT: Way(codec=Codec.JPEG),
    'JPEG 60': Way(codec=Codec.JPEG, quality=60),
    'JPEG 90, downscaled': Way(codec=Codec.JPEG, height=224, width=224),
    'raw': Way(),
    ZENOH: Way(codec=Codec.JPEG, over_zenoh=True),
    # the quality of the network profile wan
    ZENOH_WAN: Way(codec=Codec.JPEG, quality=80, over_zenoh=True),
    ZENOH_DOWNSCALED: Way(codec=Codec.JPEG, quality=80, height=224, width=224, over_zenoh=True),
    ZENOH_RAW: Way(over_zenoh=True),
}
# an answer to older pictures is not played, in profile wifi of the edge
TOO_OLD_MS = 3000.0
# a robot with 0.3 s of actions left continues
GOAL_P99_MS = 300.0


def describe(name: str, records: ContenderResults) -> Case:
    """Return the case, in which each of ours is compared with each peer."""
    series = {who: record.times_ms for who, record in records.items()}
    counts, facts = {}, {}
    for who, record in records.items():
        counts[f'lost by {who}'] = record.lost
        counts[f'too old of {who}'] = sum(took_ms > TOO_OLD_MS for took_ms in record.times_ms)
        facts[f'KB on the link for a trip of {who}'] = round(
            record.sent_bytes / max(1, record.trips) / 1e3
        )
        facts[f'packets of {who} that a full queue dropped [%]'] = percent(
            record.dropped, record.packets
        )
        facts[f'packets of {who} that the relay carried late [%]'] = percent(
            record.late, record.packets
        )
    compared = {
        f'{mine} / {peer}': ratio(series[mine], series[peer])
        for mine in ENCODINGS
        for peer in (LEROBOT, OPENPI)
        if mine in series and peer in series
    }
    return Case(name, facts, counts, series, compared, goals(records))


def goals(records: ContenderResults) -> dict[str, bool]:
    """Return whether the default is ahead of the peers, and good enough to be played."""
    mine = records[DEFAULT]
    said = {}
    for peer in (LEROBOT, OPENPI):
        if peer in records:
            theirs = records[peer].times_ms
            found = ratio(mine.times_ms, theirs)
            # who never comes back is not competition
            ahead = found['median'] < 1 if found else bool(mine.times_ms) and not theirs
            said[f'{DEFAULT}: median below that of {peer}'] = ahead
    for way in (ZENOH, ZENOH_WAN, ZENOH_DOWNSCALED):
        if way in records:
            times_ms = records[way].times_ms
            is_quick = bool(times_ms) and summarize(times_ms)['p99'] <= GOAL_P99_MS
            said[f'{way}: p99 at most {GOAL_P99_MS:g} ms'] = is_quick
    if ZENOH_RAW in records:
        said[f'{ZENOH_RAW}: none lost'] = records[ZENOH_RAW].lost == 0
    worst_ms = max(mine.times_ms, default=float('inf'))
    said[f'{DEFAULT}: none lost, none too old'] = mine.lost == 0 and worst_ms <= TOO_OLD_MS
    return said


def percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0
