# SPDX-License-Identifier: Apache-2.0
"""
A whole learning loop whose processes are killed one after the other, each at a random moment of
each stage. The fleet restarts what was killed, and the loop must go on to its next champion.

Nothing that a kill leaves may be half of anything: each policy that a server served is a whole
version, no episode is answered by two policies without the flag, and the audit of all traces
holds.
"""

from __future__ import annotations

from collections.abc import Iterable
import importlib.util
from pathlib import Path
import random
import shutil

from benchmarks.loop_fleet.fleet import CORRECTED_A_ROUND, PIXELS, PROCESSES
from benchmarks.loop_fleet.killing import Kill, kill_often, KillResults, KILLS_A_ROUND, pairs
from benchmarks.loop_fleet.stages import LoopStage
from benchmarks.results.report import Case

ABOUT = 'processes of a learning loop are killed in each of its stages: it continues, and whole'
KILLS, SEED, SHOWN = 12, 1, 20
PARAMETERS: dict[str, object] = {
    'robots': 1,
    'cameras': f'2 x {PIXELS}x{PIXELS} raw',
    'corrected_a_round': CORRECTED_A_ROUND,
    'kills_a_round': KILLS_A_ROUND,
    'first_seed': SEED,
}


def measure(rounds: int, folder: Path, *, kills: int = KILLS, seed: int = SEED) -> list[Case]:
    """Return a case for each stage, and one for all. Main thread. Raises UserError."""
    if importlib.util.find_spec('lerobot') is None:
        return [Case('not measured', {'why': 'lerobot is not installed, which writes datasets'})]
    root = folder / 'loop_kills'
    shutil.rmtree(root, ignore_errors=True)
    draw = random.Random(seed)
    found = kill_often(root, list(pairs(kills, draw)), draw)
    for fault in found.faults[:SHOWN]:
        print(f'  fault: {fault}', flush=True)
    of_stages = [stage_case(stage, found.kills) for stage in LoopStage]
    return [*(case for case in of_stages if case), whole_case(found)]


def stage_case(stage: LoopStage, kills: Iterable[Kill]) -> Case | None:
    """Return how many kills of each process in a stage were done, and how many were ok."""
    here = [kill for kill in kills if kill.stage is stage]
    if not here:
        return None
    counts = {}
    for name in PROCESSES:
        of_process = [kill for kill in here if kill.process == name]
        if of_process:
            counts[name] = len(of_process)
            counts[f'{name}_ok'] = sum(not kill.why_not for kill in of_process)
    series = [1e3 * kill.next_champion_s for kill in here if not kill.why_not]
    return Case(
        f'killed while {stage.value}',
        counts=counts,
        series_ms={'to the next champion': series},
        goals={'the loop continues': all(not kill.why_not for kill in here)},
    )


def whole_case(found: KillResults) -> Case:
    """Return what all kills have left."""
    return Case(
        'all kills',
        counts={
            'kills': len(found.kills),
            'ok': sum(not kill.why_not for kill in found.kills),
            'champions': found.champions,
            'versions': found.versions,
            'replies': found.replies,
            'episodes_joined': found.episodes,
            'faults': len(found.faults),
        },
        series_ms={
            'to the next champion': [
                1e3 * kill.next_champion_s for kill in found.kills if not kill.why_not
            ]
        },
        goals={
            'the loop goes on after each kill': all(not kill.why_not for kill in found.kills),
            'nothing half, nothing unflagged': not found.faults,
        },
    )
