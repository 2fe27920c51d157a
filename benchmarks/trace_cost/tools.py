# SPDX-License-Identifier: Apache-2.0
"""
How fast a trace is summed up and audited, and how much memory that takes: one MB a round, written
by a robot at 30 commands a second. Each in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
import json
from pathlib import Path
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks.results.report import Case
from benchmarks.trace_cost.records import executed, JOINTS, request
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.records import RecordIds, TraceRecord

ABOUT = 'traces summed up and audited, one MB for each round (time of the processor)'
COMMANDS_A_REQUEST, REQUESTS_AN_EPISODE = 15, 40
GOAL_S_A_GB, GOAL_MB = 60.0, 50.0
MB, MS = 1_000_000, 1_000_000
POLICY = {'a': 'reach@0123456789abcdef', 'b': 'reach@fedcba9876543210'}
PARAMETERS = {'joints': JOINTS, 'commands_a_request': COMMANDS_A_REQUEST}
# what the process says of itself: seconds of its processor, and by how many kB its memory grew
MEASURE = """
import json, sys, time
from {module} import {name} as work
peak_kb = lambda: int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])
before_kb, begin_s = peak_kb(), time.process_time()
work([sys.argv[1]])
print(json.dumps([time.process_time() - begin_s, peak_kb() - before_kb]))
"""
WORK = {
    'stats': ('lerobot_serve.tools.stats.collect', 'collect_stats'),
    'audit': ('lerobot_serve.tools.audit.engine', 'run_audit'),
}


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each size. Main thread."""
    return [measure_size(max(1, part), folder) for part in (rounds // 4, rounds)]


def measure_size(megabytes: int, folder: Path) -> Case:
    """Write a trace of that size, and read it in each way."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        file = Path(scratch) / 'edge.jsonl'
        lines = write(file, megabytes * MB)
        found = {name: work(*WORK[name], file) for name in WORK}
    size = {'megabytes': megabytes, 'lines': lines}
    grown = {f'{name}, memory [kB]': grown_kb for name, (_, grown_kb) in found.items()}
    return Case(
        f'{megabytes} MB',
        counts=size | grown,
        series_ms={name: [1000 * seconds] for name, (seconds, _) in found.items()},
        goals={
            f'stats of 1 GB in {GOAL_S_A_GB:g} s': found['stats'][0] / megabytes * 1000
            < GOAL_S_A_GB,
            f'no more than {GOAL_MB:g} MB': all(kb < 1000 * GOAL_MB for _, kb in found.values()),
        },
    )


def work(module: str, name: str, file: Path) -> tuple[float, int]:
    """Return the processor's seconds and the growth of memory [kB] of a function on a trace."""
    code = MEASURE.format(module=module, name=name)
    result = subprocess.run(
        [sys.executable, '-c', code, str(file)], check=True, capture_output=True, text=True
    )
    seconds, grown_kb = json.loads(result.stdout)
    return seconds, grown_kb


def write(file: Path, size_bytes: int) -> int:
    """Write a trace of about that size; return its lines."""
    written = lines = 0
    with open(file, 'wb') as out:
        for line in map(encode, drive()):
            out.write(line)
            lines += 1
            written += len(line)
            if written >= size_bytes:
                break
        end = records.FooterRecord(0, records=lines - 1, records_lost={}, end_reason='closed')
        out.write(encode(end))
    return lines + 1


def drive() -> Iterator[TraceRecord]:
    """Hand out what an edge would write, without end."""
    limits = {'motion': 'position', 'low': -9.0, 'high': 9.0, 'max_step': 1.0}
    first = records.header(
        node='/edge_controller',
        role='edge',
        version='0',
        wall_s=time.time(),
        now_ns=0,
        policies=[records.policy(slot, policy) for slot, policy in POLICY.items()],
        parameters={
            'max_action_age_s': 3.0,
            'limits': {'step_s': 1 / 30, 'actions': [limits] * JOINTS},
        },
    )
    first.part = 0
    yield first
    random = np.random.default_rng(0)
    tick, now_ns = 0, 0
    table = random.uniform(-0.4, 0.4, (1000, JOINTS)).astype(np.float32)
    for number in count(1):
        slot = 'ab'[number // REQUESTS_AN_EPISODE % 2]
        ids = RecordIds('robot_1', 77, number, f'episode-{number // REQUESTS_AN_EPISODE}')
        now_ns += 200 * MS
        told = {'slot': slot, 'policy': POLICY[slot]}
        inference_ms = float(random.lognormal(3.0, 0.3))
        yield request(number, ids, now_ns=now_ns, inference_ms=inference_ms, **told)
        for row in range(COMMANDS_A_REQUEST):
            tick, now_ns = tick + 1, now_ns + 33 * MS
            action = table[tick % len(table)]
            yield executed(tick, ids, now_ns=now_ns, row=row, action=action, **told)
