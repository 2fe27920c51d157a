# SPDX-License-Identifier: Apache-2.0
"""A learner in a process of its own, with bags to convert and a trainer that waits for a gate."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import socket
import subprocess
import sys

from rclpy.node import Node
from std_srvs.srv import Trigger

from benchmarks.harness.processes import NodeProcesses
from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.learner.rounds.states import Phase
from lerobot_serve.learner.versions import Version
from lerobot_serve.ros import qos
from lerobot_serve.versions.store import check
from lerobot_serve_interfaces.msg import (
    CanaryState,
    LearnerState,
    PolicyVersion,
)
from lerobot_serve_interfaces.msg import (
    RecordedEpisode as RecordedEpisodeMessage,
)
from support.learner.recorded_bags import record_episode
from support.learner.trainer_rig import REACH
from support.nodes.service_asking import ask as ask_service
from support.waiting import wait_until

LIMIT_S = 150.0
ROUTER = '/played_router'
# prints how far it is, copies the parent and changes a bit of a weight, once a file allows it
TRAINING_STEPS = 100
TRAINING = """
import pathlib, random, shutil, sys, time
parent, result, gate, began = map(pathlib.Path, sys.argv[1:5])
began.touch()
for step in (10, 42):
    print(f'step {step} loss {5 / step:.3f}', flush=True)
    time.sleep(0.3)
while not gate.exists():
    time.sleep(0.02)
shutil.copytree(parent, result, ignore=shutil.ignore_patterns('version.json'))
file = result / 'model.safetensors'
file.chmod(0o644)
data = bytearray(file.read_bytes())
data[-4 * random.randrange(1, 100)] ^= 1
file.write_bytes(data)
"""


class LearnerNodeRig:
    """Starts, kills and watches a learner; its folders are below `folder`."""

    def __init__(self, node: Node, processes: NodeProcesses, folder: Path) -> None:
        self.node, self.processes, self.folder = node, processes, folder
        self.bags = folder / 'bags'
        self.gate, self.training = folder / 'gate', folder / 'training'
        self.states: list[LearnerState] = []
        self.versions: list[PolicyVersion] = []
        self.starts = 0
        self._write_trainer()
        node.create_subscription(LearnerState, '/learner/state', self.states.append, qos.STATE)
        node.create_subscription(
            PolicyVersion, '/policy_versions', self.versions.append, qos.VERSIONS
        )
        self._episodes = node.create_publisher(
            RecordedEpisodeMessage, '/recorded_episodes', qos.RECORDED_EPISODES
        )
        self._canary = node.create_publisher(CanaryState, f'{ROUTER}/canary', qos.STATE)

    def _write_trainer(self) -> None:
        script = self.folder / 'train.py'
        script.write_text(TRAINING)
        words = [sys.executable, str(script), '{parent}', '{output}']
        words += [str(self.gate), str(self.training)]
        content = {
            'command': words,
            'result': '{output}',
            'steps': TRAINING_STEPS,
            'step_pattern': r'step (\d+)',
            'loss_pattern': r'loss (\S+)',
        }
        (self.folder / 'trainer.yaml').write_text(json.dumps(content))

    # the process

    def start(self, name: str = 'learner', **parameters: object) -> subprocess.Popen[bytes]:
        self.starts += 1
        given = {
            'trainer': self.folder / 'trainer.yaml',
            'parent': REACH,
            'folder': self.folder / 'learner',
            'store': self.folder / 'store',
            'episodes_per_round': 2,
            'router': ROUTER,
        }
        self.log_name = f'{name}_{self.starts}'
        return self.processes.start(self.log_name, 'learner', **{**given, **parameters})

    @property
    def log(self) -> str:
        return (self.folder / f'{self.log_name}.log').read_text()

    def kill(self) -> None:
        process = self.processes.processes.pop(self.log_name)
        process.kill()
        process.wait(20)

    # what the world does

    def record(self, *names: str, is_announced: bool = True) -> list[RecordedEpisode]:
        """Write a bag for each episode, as a recorder does, and announce it."""
        made = []
        for name in names:
            made.append(record_episode(self.bags, name, 6, control_steps_person=2))
            if is_announced:
                self.announce(made[-1])
        return made

    def announce(self, episode: RecordedEpisode) -> None:
        self._episodes.publish(encode(episode))

    def roll_back(self, version_id: str) -> None:
        self._judge(version_id, CanaryState.ROLLED_BACK, 'it succeeds less often')

    def promote(self, version_id: str) -> None:
        self._judge(version_id, CanaryState.PROMOTED, 'all new episodes')

    def _judge(self, version_id: str, state: int, text: str) -> None:
        self._canary.publish(
            CanaryState(
                state=state, candidate_policy=version_id, planned_policy=version_id, text=text
            )
        )

    def call(self, name: str) -> Trigger.Response:
        client = self.node.create_client(Trigger, f'/learner/{name}')
        try:
            return ask_service(self.node, client, Trigger.Request())
        finally:
            self.node.destroy_client(client)

    # what is seen

    @property
    def state(self) -> LearnerState | None:
        return self.states[-1] if self.states else None

    def wait(self, holds: Callable[[], object], what: str) -> object:
        def holds_or_ended() -> object:
            process = self.processes.processes.get(self.log_name)
            assert process is None or process.poll() is None, f'{what}: {self.log}'
            return holds()

        try:
            return wait_until(holds_or_ended, what, LIMIT_S)
        except BaseException:
            print(f'--- the learner, last\n{self.state}')
            raise

    def wait_for(self, phase: Phase, what: str = '') -> None:
        self.wait(
            lambda: self.state is not None and self.state.state == phase.value,
            what or f'the learner is {phase.name}',
        )

    def wait_for_training(self) -> None:
        """Wait until the command of the trainer runs."""
        self.wait(self.training.exists, 'the trainer runs')
        self.training.unlink()
        self.wait_for(Phase.TRAINING)

    def ids(self) -> list[str]:
        """Return the versions in the store, each of them whole."""
        found = [path for path in (self.folder / 'store').glob('*@*') if path.is_dir()]
        return sorted(check(path).id for path in found)

    def announced(self) -> list[Version]:
        """Return the announced versions, each once, in order."""
        found = {each.id: Version(each.id, each.parent, 0) for each in self.versions}
        return list(found.values())


def host() -> str:
    return socket.gethostname()
