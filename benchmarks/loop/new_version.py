# SPDX-License-Identifier: Apache-2.0
"""
From the end of a learner's round to the first episode with its version, step by step.

Real processes: a simulated robot, recorder, learner, gate, router and the loop, whose training
changes one bit, so that each version passes its gate. Main thread.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
import shutil
import time

from benchmarks.loop_fleet.fleet import GATE_RECORDINGS, loop_fleet, LoopFleet, PIXELS
from benchmarks.loop_fleet.witness import Witness, witness
from benchmarks.results.report import Case
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.errors import UserError
from lerobot_serve.tools.loop.journal import read_journal

ABOUT = "from the end of a learner's round to the first episode with its version"
ROUNDS_A_VERSION, LEAST_VERSIONS = 50, 3
EPISODES_A_ROUND = 35
FIRST_LIMIT_S, LIMIT_S = 900.0, 600.0
PARAMETERS = {
    'robots': 1,
    'cameras': f'2 x {PIXELS}x{PIXELS} raw',
    'episodes_a_round': EPISODES_A_ROUND,
    'gate_recordings': GATE_RECORDINGS,
}
GATED, STARTED, EPISODE = 'round to gate record', 'gate record to start', 'start to episode'
WHOLE = 'round to first episode'


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the case. Main thread. Raises UserError."""
    if importlib.util.find_spec('lerobot') is None:
        return [Case('not measured', {'why': 'lerobot is not installed, which writes datasets'})]
    home = folder / 'new_version'
    shutil.rmtree(home, ignore_errors=True)
    with (
        witness() as seen,
        loop_fleet(home, episodes_per_round=EPISODES_A_ROUND, filters=('success',)) as fleet,
    ):
        return [follow(fleet, seen, max(LEAST_VERSIONS, rounds // ROUNDS_A_VERSION))]


def follow(fleet: LoopFleet, seen: Witness, count: int) -> Case:
    """Follow so many versions from their round to their first episode. Raises UserError."""
    steps: dict[str, dict[str, float]] = {}

    def is_done() -> bool:
        note_events(fleet, steps)
        return len(followed(seen, steps)) >= count

    if not fleet.wait(is_done, FIRST_LIMIT_S + count * LIMIT_S):
        raise UserError(
            f'{len(followed(seen, steps))} of {count} versions drove; see {fleet.home}'
        )
    series: dict[str, list[float]] = {name: [] for name in (WHOLE, GATED, STARTED, EPISODE)}
    for digest in followed(seen, steps)[:count]:
        times = [seen.announced[digest], steps[digest]['gate_admitted']]
        times += [steps[digest]['rollout_started'], seen.drove[digest]]
        for name, begin_s, end_s in zip((GATED, STARTED, EPISODE), times, times[1:], strict=False):
            series[name].append(1e3 * (end_s - begin_s))
        series[WHOLE].append(1e3 * (times[-1] - times[0]))
    return Case(
        'a new version reaches a robot',
        counts={'versions': count, 'announced': len(seen.announced)},
        series_ms=series,
    )


def note_events(fleet: LoopFleet, steps: dict[str, dict[str, float]]) -> None:
    """Keep when each event of the journal was first seen."""
    for entry in read_journal(fleet.journal):
        steps.setdefault(digest_of(entry.version), {}).setdefault(entry.event, time.monotonic())


def followed(seen: Witness, steps: dict[str, dict[str, float]]) -> list[str]:
    """Return the versions that came from their round to a robot, in the order of their rounds."""
    return [
        digest
        for digest in seen.announced
        if digest in seen.drove
        and {'gate_admitted', 'rollout_started'} <= steps.get(digest, {}).keys()
    ]
