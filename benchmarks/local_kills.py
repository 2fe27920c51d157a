# SPDX-License-Identifier: Apache-2.0
"""
The local path whose server or client is killed, at any instant, ten thousand times: after what
time the other end has seen it, and what is left behind.
"""

from __future__ import annotations

import json
from pathlib import Path
import subprocess

from benchmarks.harness.processes import module_command
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError
from lerobot_serve.telemetry.durations import summarize

ABOUT = 'one end of the local path is killed at any instant: the other sees it, and nothing stays'
KILLS, SEED = 10_000, 1
# shared memory of the whole machine, in which others work, too
SHARED_LIMIT_KIB = 64 << 10
GOAL_MS = 50.0
PARAMETERS: dict[str, object] = {'request_bytes': 300_000, 'chunk_bytes': 5_000}


def measure(rounds: int, folder: Path, *, kills: int = KILLS, seed: int = SEED) -> list[Case]:
    """Return one case. Main thread. Raises UserError."""
    # a process of its own: it forks, which a process with threads must not
    command = module_command('harness.local_killer', kills, seed)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f'the killer failed: {done.stderr.strip()[-300:]}')
    found = json.loads(done.stdout)
    left = found['left']
    counts = {'kills': kills, 'never_met': found['never_met'], 'unseen': found['unseen']}
    return [
        Case(
            'server or client',
            {'first_seed': seed},
            counts | left,
            {'seen after': found['seen_ms']},
            goals={
                'every kill is seen': found['unseen'] == 0,
                f'p99 within {GOAL_MS:g} ms': summarize(found['seen_ms'])['p99'] <= GOAL_MS,
                'no file, descriptor or page is left': left['descriptors'] == 0
                and left['shm_files'] <= 0
                and left['shared_kib'] < SHARED_LIMIT_KIB,
            },
        )
    ]
