# SPDX-License-Identifier: Apache-2.0
"""
An edge controller is killed at random instants while a recorder writes its episodes; then all bags
become a dataset. Each control step that was heard must be in a bag, once, each episode with a
usable row in the dataset, and frames and rows must be equal.

The simulated arm tries for short attempts, so episodes end by themselves, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
import json
from pathlib import Path
import random
import shutil
import subprocess
import time

from benchmarks.control_loop.edge_process import command, server_and_arm
from benchmarks.harness.nodes import spinning_node
from benchmarks.harness.processes import child
from benchmarks.recording.kills import (
    folders_of,
    record_command,
    SHORT_WAIT,
    steps_of,
    wait_for,
)
from benchmarks.results.report import Case
from lerobot_serve.ros import qos
from lerobot_serve.tools.dataset.checking import check_dataset
from lerobot_serve.tools.dataset.records import Existing
from lerobot_serve_interfaces.msg import ExecutedAction

ABOUT = 'an edge controller is killed at random instants'
KILLS, LONGEST_S, SIDE, ATTEMPT_S, SETTLE_S = 100, 2.0, 64, 2.0, 2.0
# how long the server keeps the session of a killed edge from the next one
GRACE_S = 1.0
# in the order of input_ids; behind them is the device of a person, which is silent here
INPUT_TOPICS = ('joint_states', 'camera/front/image_raw', 'camera/wrist/image_raw')
ROBOT = '/bench_edge_kill'
EDGE = f'{ROBOT}/edge_controller'
ARM = {
    'image_height': SIDE,
    'image_width': SIDE,
    'edge_controller': EDGE,
    'attempt_timeout_s': ATTEMPT_S,
}
PARAMETERS = {'strategy': 'episodic', 'cameras': f'2 x {SIDE}x{SIDE} raw', 'rate_hz': 30}


@dataclass(slots=True)
class HeardSteps:
    """The control steps with a command, as a subscriber hears them: of each, its episode."""

    steps: Counter[tuple[str, int]] = field(default_factory=Counter)
    usable: set[str] = field(default_factory=set)

    def clear(self) -> None:
        self.steps.clear()
        self.usable.clear()

    def add(self, message: ExecutedAction) -> None:
        self.steps[message.episode_id, message.control_step] += 1
        if (
            len(message.commanded)
            and message.episode_id
            and all(message.input_ids[: len(INPUT_TOPICS)])
        ):
            self.usable.add(message.episode_id)


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the one case. Main thread. Raises UserError, CalledProcessError."""
    return [kill_often(folder, KILLS, random.Random(1))]


def kill_often(folder: Path, kills: int, draw: random.Random) -> Case:
    """Kill the edge so often beside a recorder; convert what it wrote, and judge."""
    bags, heard, durations_s = folder / 'edge_kills', HeardSteps(), []
    shutil.rmtree(bags, ignore_errors=True)
    recorder_log = folder / 'edge_kills_recorder.log'
    with (
        spinning_node('bench_edge_kills') as node,
        server_and_arm(ROBOT, folder, {'session_grace_s': GRACE_S}, **ARM),
        child(record_command(bags, *SHORT_WAIT), recorder_log),
    ):
        node.create_subscription(
            ExecutedAction, f'{EDGE}/executed_action', heard.add, qos.EXECUTED_ACTION
        )
        let_inputs_be_found(recorder_log, folder)
        heard.clear()
        for _ in range(kills):
            durations_s.append(run_and_kill(heard, folder / 'killed_edge.log', draw))
        # the last steps are on their way to the recorder
        time.sleep(SETTLE_S)
    out = folder / 'edge_kills_out'
    shutil.rmtree(out, ignore_errors=True)
    words = ['lerobot-serve', 'dataset', *map(str, folders_of(bags)), str(out)]
    subprocess.run([*words, '--vcodec', 'png', '--check'], check=True, capture_output=True)
    return judge(bags, out, heard, durations_s)


def let_inputs_be_found(recorder_log: Path, folder: Path) -> None:
    """
    Run an edge until the recorder, which looks for topics once a second, records all inputs: what
    a robot did before has no pictures and is left out of a dataset.
    """
    with child(command('edge_controller', ROBOT), folder / 'first_edge.log'):
        wait_for(lambda: are_recorded(recorder_log.read_text()), 'the inputs are recorded')


def are_recorded(log: str) -> bool:
    return all(f'{ROBOT}/{topic} ' in log for topic in INPUT_TOPICS)


def run_and_kill(heard: HeardSteps, log: Path, draw: random.Random) -> float:
    """Start the edge, kill it in the midst of its steps; return how long it was heard."""
    before = len(heard.steps)
    with child(command('edge_controller', ROBOT), log) as process:
        wait_for(lambda: len(heard.steps) > before, 'the edge controller commands')
        begin_s = time.monotonic()
        time.sleep(draw.uniform(0.0, LONGEST_S))
        process.kill()
        process.wait()
    return time.monotonic() - begin_s


def judge(bags: Path, out: Path, heard: HeardSteps, durations_s: list[float]) -> Case:
    """Compare what was heard with the bags, and the bags with the dataset."""
    found, damaged = steps_of(folders_of(bags), lambda step: (step.episode_id, step.control_step))
    there = Existing.read(out)
    converted = {json.loads(line)['episode_id'] for line in there.lines}
    lost = sum(step not in found for step in heard.steps if step[0])
    twice = sum(count > 1 for count in found.values())
    faults = check_dataset(out, decode=True)
    missing = len(heard.usable - converted)
    return Case(
        'kills of an edge controller',
        counts={
            'kills': len(durations_s),
            'steps_heard': len(heard.steps),
            'steps_lost': lost,
            'steps_twice': twice,
            'damaged_bags': damaged,
            'episodes': len(heard.usable),
            'episodes_not_converted': missing,
            'rows': there.rows,
        },
        series_ms={'heard before a kill': [1e3 * each for each in durations_s]},
        goals={
            'every heard step is in a bag, once': lost == twice == damaged == 0,
            'every episode converts': missing == 0,
            'frames = rows': not faults,
        },
    )
