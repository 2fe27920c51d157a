# SPDX-License-Identifier: Apache-2.0
"""
`lerobot-serve loop up` with two servers, a router, a robot, a recorder, a learner and the loop.

Its policy reaches its targets, and its training changes one bit of a weight, so that a round takes
seconds and each version passes its gate. Main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import json
import os
from pathlib import Path
import subprocess
import sys
import time

from benchmarks.harness.processes import child
from lerobot_serve.errors import UserError
from lerobot_serve.learner.trainers.guard import share_niceness
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.processes import executable_path

PIXELS, RATE_HZ, ATTEMPT_S, TRAINING_S = 64, 15.0, 4.0, 2.0
# only what a person corrected is learned: a round has few episodes, and begins when they are asked
# for, so that no version of a round beside a rollout is stale
CORRECTED_A_ROUND, GATE_RECORDINGS = 4, 30
POLL_S, HURRIED = 0.1, -5
TRAINING = """
import pathlib, random, shutil, sys, time
parent, result = map(pathlib.Path, sys.argv[1:3])
time.sleep(float(sys.argv[3]))
shutil.copytree(parent, result, ignore=shutil.ignore_patterns('version.json'))
file = result / 'model.safetensors'
file.chmod(0o644)
data = bytearray(file.read_bytes())
data[-4 * random.randrange(1, 5000)] ^= 1
file.write_bytes(data)
"""
# process -> words of its command line, all of which only it has
COMMANDS = {
    'learner': ('/learner',),
    'server_a': ('/policy_server', '__ns:=/a'),
    'server_b': ('/policy_server', '__ns:=/b'),
    'router': ('/policy_router',),
    'recorder': ('/lerobot-serve', 'record'),
    'loop': ('/lerobot-serve', 'loop', 'run'),
}
PROCESSES = tuple(COMMANDS)


class LoopFleet:
    """A fleet that runs, with its files in `home`; `hurries`: see `hurry`."""

    def __init__(
        self, process: subprocess.Popen[bytes], home: Path, log: Path, *, hurries: bool
    ) -> None:
        self._process, self.home, self._log = process, home, log
        self.hurries = hurries
        self.traces, self.bags, self.store = home / 'traces', home / 'bags', home / 'versions'
        self.journal = home / 'ros' / 'lerobot_serve' / 'loop'
        self._followed = 0

    @property
    def log(self) -> str:
        return self._log.read_text(errors='replace')

    def news(self) -> str:
        """Return what it printed since the last call."""
        with self._log.open('rb') as file:
            file.seek(self._followed)
            found = file.read()
        self._followed += len(found)
        return found.decode(errors='replace')

    def pid(self, name: str) -> int | None:
        """Return the process that runs for a name now; None between an end and a restart."""
        for pid in children(self._process.pid):
            words = command_of(pid)
            if all(any(word.endswith(each) for word in words) for each in COMMANDS[name]):
                return pid
        return None

    def hurry(self, niceness: int = HURRIED) -> None:
        """
        Give the steps of learner and loop a high priority, where this user may: on a machine that
        others use, those of the learner would get next to nothing.
        """
        for name in ('learner', 'loop'):
            pid = self.pid(name)
            for step in children(pid, every_thread=True) if pid else ():
                # a step of the learner lowers its priority itself, some time after its start
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, step, niceness)
                share_niceness(step)

    def check(self) -> None:
        """Raise UserError if the fleet has ended."""
        if self._process.poll() is not None:
            lines = self.log.splitlines()[-3:]
            raise UserError(f'the fleet has ended: {" / ".join(lines)}; see {self._log}')

    def wait(self, holds: Callable[[], object], limit_s: float) -> bool:
        """Wait until a condition holds; return whether it does. Raises UserError."""
        deadline_s = time.monotonic() + limit_s
        while not holds():
            self.check()
            if self.hurries:
                self.hurry()
            if time.monotonic() > deadline_s:
                return False
            time.sleep(POLL_S)
        return True


@contextlib.contextmanager
def loop_fleet(
    home: Path,
    *,
    episodes_per_round: int = CORRECTED_A_ROUND,
    filters: Sequence[str] = ('success', 'intervention'),
    trainer: dict[str, object] | None = None,
    hurries: bool = True,
) -> Iterator[LoopFleet]:
    """
    Run a fleet with a folder of its own, which must not exist yet. `trainer` is a trainer file,
    `hurries` is whether a wait hurries its steps.
    """
    home.mkdir(parents=True)
    file = write_fleet(home, episodes_per_round, filters, trainer)
    command = [str(executable_path('lerobot-serve')), 'loop', 'up', str(file)]
    environment = {**os.environ, 'ROS_HOME': str(home / 'ros'), 'OMP_NUM_THREADS': '1'}
    with child(command, home / 'up.log', environment) as process:
        yield LoopFleet(process, home, home / 'up.log', hurries=hurries)


def write_fleet(
    home: Path,
    episodes_per_round: int,
    filters: Sequence[str],
    trainer: dict[str, object] | None,
) -> Path:
    """Write the fleet file and what it needs; return it."""
    (home / 'trainer.yaml').write_text(json.dumps(trainer or bit_trainer(home)))
    server = {
        'policy': str(shared_file('config/policies/reach')),
        'policy_root': str(home / 'versions'),
        'cpu_threads': 1,
    }
    (home / 'versions').mkdir()
    content = {
        'servers': {name: {**server, 'slot': name} for name in ('a', 'b')},
        'router': {
            'split_percent': 100,
            'gate_folder': str(home / 'gates'),
            'trace_folder': str(home / 'traces'),
            'canary': CANARY,
        },
        'robots': {'robot_1': robot(home)},
        'record': {'folder': str(home / 'bags'), 'strategy': 'episodic', 'outcome_wait': 0.5},
        'learner': {
            'store': str(home / 'versions'),
            'trainer': str(home / 'trainer.yaml'),
            'episode_filters': list(filters),
            'episodes_per_round': episodes_per_round,
        },
        'loop': {'plan': '75:2,100', 'period_s': 0.5, 'gate_recordings': GATE_RECORDINGS},
    }
    file = home / 'fleet.yaml'
    file.write_text(json.dumps(content, indent=2))
    return file


def bit_trainer(home: Path) -> dict[str, object]:
    """Write a program that changes a bit; return the trainer file that runs it."""
    program = home / 'train.py'
    program.write_text(TRAINING)
    words = [sys.executable, str(program), '{parent}', '{output}', str(TRAINING_S)]
    return {'command': words, 'result': '{output}'}


def robot(home: Path) -> dict[str, object]:
    return {
        'simulated': True,
        'task': 'reach the target',
        'trace_folder': str(home / 'traces'),
        'simulation': {
            'leader': True,
            'rate_hz': RATE_HZ,
            'attempt_timeout_s': ATTEMPT_S,
            'image_height': PIXELS,
            'image_width': PIXELS,
        },
    }


# all versions are equal: a few episodes decide, and no guard of a busy machine
CANARY = {
    'minimum_step_s': 1.0,
    'margin': 0.5,
    'false_promotion': 0.5,
    'block_episodes': 1,
    'minimum_replies': 20,
    'minimum_commands': 100,
    'max_latency_ratio': 0.0,
    'max_failed_percent': 100.0,
    'max_trip_percent': 100.0,
    'max_fallback_percent': 100.0,
    'max_halted_percent': 0.0,
    'watch_episodes': 2,
    'watch_hours': 0.0005,
}


def children(pid: int, *, every_thread: bool = False) -> list[int]:
    """Return the processes that the main thread of a process, or any thread, has started."""
    found: list[int] = []
    for task in Path(f'/proc/{pid}/task').glob('*' if every_thread else str(pid)):
        with contextlib.suppress(OSError):
            found += [int(word) for word in (task / 'children').read_text().split()]
    return found


def command_of(pid: int) -> list[str]:
    try:
        return Path(f'/proc/{pid}/cmdline').read_bytes().decode(errors='replace').split('\0')
    except OSError:
        return []
