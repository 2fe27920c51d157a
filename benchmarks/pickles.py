# SPDX-License-Identifier: Apache-2.0
"""
The reader of LeRobot's pickles: how long it takes beside Python's unpickler, and what mutated
pickles do to it.

Both read the same observations in turn, each from one of several copies: what a client sends has
not been read before. Then all known exploits and ten million mutated pickles are read in a process
of their own (`benchmarks.harness.pickle_fuzz`), or as many as `--mutations` says.
"""

from __future__ import annotations

import json
from pathlib import Path
import pickle
import subprocess

import numpy as np

from benchmarks.harness import peer_classes
from benchmarks.harness.processes import module_command, took_ms
from benchmarks.peers.comparison import compare
from benchmarks.peers.peer_process import frames, ImageSet, JOINT_NAMES, JOINTS
from benchmarks.results.report import Case
from lerobot_serve.errors import UserError
from lerobot_serve.peer_formats.safe_pickle import read_observation, write_actions

ABOUT = "LeRobot's pickles: read in what time, and after how many mutations"
SIZES = (ImageSet(1, 240, 256), ImageSet(2, 224, 224), ImageSet(2, 480, 640))
# as LeRobot's examples have them
REAL_SIZE = SIZES[-1]
COPIES_BYTES = 64 * 2**20
MUTATIONS, SEED = 10_000_000, 1
FUZZ_LIMIT_S = 6 * 3600.0
GOAL_RATIO, GOAL_MIB, GOAL_GROWN_MIB = 1.2, 64, 8
PARAMETERS = {'seed': SEED, 'copies_bytes': COPIES_BYTES}
OURS, PYTHONS, WRITING = 'this reader', 'pickle.loads', 'writing a chunk of 100x6'


def measure(rounds: int, folder: Path, mutations: int = MUTATIONS) -> list[Case]:
    """Return a case for each size, and one of the mutations. Main thread. Raises UserError."""
    return [*(measure_size(size, rounds) for size in SIZES), mutate(mutations)]


def measure_size(size: ImageSet, rounds: int) -> Case:
    """Read an observation of one size, by both in turn."""
    named, renamed = observations(size)
    chunk = np.zeros((100, JOINTS), np.float32)
    series: dict[str, list[float]] = {OURS: [], PYTHONS: [], WRITING: []}
    for number in range(rounds + 20):
        place = number % len(named)
        took = {
            PYTHONS: took_ms(lambda place=place: pickle.loads(named[place])),
            OURS: took_ms(lambda place=place: read_observation(renamed[place])),
            WRITING: took_ms(lambda: write_actions(chunk, 0.0, 0, 1 / 30)),
        }
        # the first ones fill caches
        for name, value in took.items() if number >= 20 else ():
            series[name].append(value)
    ratio = compare(series[OURS], series[PYTHONS])
    # small pictures are read in less than the opcodes around them take
    goal = f'median at most {GOAL_RATIO:g} x that of pickle'
    return Case(
        f'{size.cameras} cameras of {size.height}x{size.width}',
        {'pickle_bytes': len(named[0])},
        {'rounds': rounds},
        series,
        {f'{OURS} / {PYTHONS}': ratio},
        {goal: ratio['median'] <= GOAL_RATIO} if size == REAL_SIZE else {},
    )


def observations(size: ImageSet) -> tuple[list[bytes], list[bytes]]:
    """Return copies of one pickle, with the names of the tests' classes and with LeRobot's."""
    joints = {name: 0.1 * number for number, name in enumerate(JOINT_NAMES)}
    values = {**joints, **frames(size), 'task': 'pick'}
    named = pickle.dumps(peer_classes.TimedObservation(1.0, 0, values, True), 4)
    count = max(COPIES_BYTES // len(named), 1)
    renamed = named.replace(peer_classes.OURS, peer_classes.THEIRS)
    return [copy(named) for _ in range(count)], [copy(renamed) for _ in range(count)]


def copy(data: bytes) -> bytes:
    return bytes(bytearray(data))


def mutate(count: int) -> Case:
    """Read exploits and mutated pickles; progress is printed. Raises UserError."""
    command = module_command('harness.pickle_fuzz', '--seed', SEED, '--count', count)
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=FUZZ_LIMIT_S)
    if ran.returncode:
        raise UserError(f'the fuzz of pickles ended with {ran.returncode}; its text is above')
    found = json.loads(ran.stdout)
    lists = {name: found.pop(name) for name in ('crashed', 'executed')}
    mib = {name: round(found.pop(name), 1) for name in ('peak_mib', 'grown_mib')}
    return Case(
        'mutations',
        {**mib, **lists},
        found,
        goals={
            'nothing is executed': not lists['executed'],
            'no other error than a refusal': not lists['crashed'],
            f'at most {GOAL_MIB} MiB': mib['peak_mib'] <= GOAL_MIB,
            f'memory grows by at most {GOAL_GROWN_MIB} MiB': mib['grown_mib'] <= GOAL_GROWN_MIB,
        },
    )
