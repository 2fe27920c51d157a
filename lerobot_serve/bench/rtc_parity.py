"""
Whether remote real-time chunking plays what LeRobot's own loop plays, and what a script costs.

No measurement of speed: a proof, over as many random scripts of delays as --rounds says, times
SCRIPTS_A_ROUND. Every row that is played, and all that is left in both units after each merge, is
compared byte by byte.
"""

from __future__ import annotations

from pathlib import Path
import time

from support.rtc_parity import scene
from support.rtc_parity.parity import Different, Parity, TURNS
import torch

from benchmarks.results.report import Case

ABOUT = "remote real-time chunking against LeRobot's own loop, byte by byte, over random delays"
SCRIPTS_A_ROUND = 5
PARAMETERS = {
    'policy': 'SmolVLA, random weights, CPU, one thread',
    'chunk_rows': scene.CHUNK_ROWS,
    'requests_a_script': TURNS,
    'scripts_a_round': SCRIPTS_A_ROUND,
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case. Main thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [prove(rounds * SCRIPTS_A_ROUND, scene.build(folder / 'rtc_parity_policy'))]
    finally:
        torch.set_num_threads(threads)


def prove(scripts: int, policy: Path) -> Case:
    """Run so many scripts; those that differ are counted, not hidden."""
    parity, durations_ms, different = Parity(policy), [], 0
    try:
        for number in range(scripts):
            begin_ns = time.perf_counter_ns()
            try:
                parity.run(number)
            except Different as error:
                different += 1
                print(error)
            durations_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
    finally:
        parity.close()
    counts = {
        'scripts': scripts,
        'different': different,
        'requests_guided': parity.guided,
        'rows_played': parity.rows_played,
    }
    goals = {f'all {scripts} scripts are equal, byte by byte': different == 0}
    return Case('SmolVLA', {}, counts, {'a script, both loops': durations_ms}, goals=goals)
