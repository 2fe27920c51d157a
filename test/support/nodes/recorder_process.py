# SPDX-License-Identifier: Apache-2.0
"""A recorder, or another verb, in a process of its own beside the robot that a test plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
import signal
import subprocess

from lerobot_serve.tools.processes import end_with_parent, executable_path
from lerobot_serve_interfaces.msg import EpisodeOutcome
from support.nodes.edge_rig import EDGE, EdgeRig
from support.nodes.played_robot import ROBOT

LIMIT_S = 30.0


class VerbProcess:
    """The process, and what it printed."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self.process, self._log = process, log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)


@contextmanager
def verb(log: Path, *words: str, **options: object) -> Iterator[VerbProcess]:
    """Start a verb whose output is in a file; it is ended whatever happens."""
    command = [str(executable_path('lerobot-serve')), *words]
    with log.open('w') as file:
        process = subprocess.Popen(end_with_parent(command), stdout=file, stderr=file, **options)
    try:
        yield VerbProcess(process, log)
    finally:
        process.kill()
        process.wait(LIMIT_S)


def recorder(root: Path, *words: str, **options: object) -> AbstractContextManager[VerbProcess]:
    """Start a recorder; it is ended whatever happens."""
    log = root.with_name(f'{root.name}.{len(list(root.parent.glob("*.log")))}.log')
    return verb(log, 'record', str(root), *words, **options)


def wait_until_recorded(rig: EdgeRig, process: VerbProcess, *topics: str) -> None:
    """
    Wait until a recorder hears these topics. Not by the graph: it lists the subscriptions of a
    killed recorder for a while.
    """
    for topic in topics:
        rig.wait(lambda t=topic: f'recording {t} ' in process.log, f'{topic} is recorded')


def wait_until_heard(rig: EdgeRig, *processes: VerbProcess) -> None:
    """Wait until recorders have read the robot file and hear the inputs that it names."""
    for process in processes:
        wait_until_recorded(rig, process, f'{EDGE}/executed_action', f'{ROBOT}/joint_states')


def run_episode(rig: EdgeRig, episode_id: str, outcome: int = EpisodeOutcome.SUCCESS) -> None:
    """Let the robot play an episode to its outcome."""
    run = rig.run(episode_id=episode_id, task='reach')
    rig.wait_for_play(10)
    rig.judge(outcome, episode_id)
    run.result()
