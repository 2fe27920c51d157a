# SPDX-License-Identifier: Apache-2.0
"""A night of eight hours: all parts, their faults, and what holds at every moment. One thread."""

from __future__ import annotations

from pathlib import Path
import random
import shutil

from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.learner.rounds.settings import LearnerSettings
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.loop import observing
from lerobot_serve.tools.loop.journal import JOURNAL_FILE, read_journal
from lerobot_serve.tools.loop.settings import LoopSettings
from lerobot_serve.tools.versions import identify
from lerobot_serve.versions.store import VersionStore
from lerobot_serve_interfaces.msg import CanaryState
from support.night.checks import Checks
from support.night.clock import NightClock
from support.night.faults import Faults, NIGHT_S
from support.night.learner_process import NightLearner, SHORT
from support.night.loop_process import NightLoop
from support.night.recordings import ANNOUNCED, HOST, Recorder
from support.night.robots import EndedEpisode, NightRobot
from support.night.router_process import NightRouter
from support.night.servers import NightServer
from support.night.world import World
from support.paths import REPOSITORY

ROBOTS, EPISODES_A_ROUND, LOOP_PERIOD_S = 8, 30, 30.0
STEPS = (
    *('gate_admitted', 'gate_refused', 'rollout_started', 'promoted', 'watched', 'rolled_back'),
    'finished',
)
LIMITS = '\n'.join(
    f'  {name}.pos: {{joint: {name}, min: -3, max: 3, max_step: 0.6}}'
    for name in (
        *('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'wrist_roll', 'gripper'),
    )
)
ROBOT = f"""
name: arm
fps: 30
state:
  - topic: joint_states
    type: sensor_msgs/JointState
    joints: [shoulder_pan, shoulder_lift, elbow_flex, wrist_flex, wrist_roll, gripper]
    field: position
    max_age_s: 0.1
cameras: {{}}
actions:
{LIMITS}
command: {{topic: commands, type: std_msgs/Float64MultiArray}}
"""


class Night:
    """See the module. `folder` keeps all that a night leaves."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.clock = folder, NightClock()
        self.store, self.gates = folder / 'store', folder / 'gates'
        self.traces, self.journal = folder / 'traces', folder / 'loop'
        parent = folder / 'champion'
        shutil.copytree(REPOSITORY / 'config' / 'policies' / 'reach_v1', parent)
        (folder / 'trainer.yaml').write_text(SHORT)
        (folder / 'robot.yaml').write_text(ROBOT)
        self.gates.mkdir()
        VersionStore.make(self.store)
        self.first = identify(parent).fingerprint
        self.world = World(self.first, seed)
        self.damaged: set[str] = set()
        self.checks = Checks(self.clock, self.world, self.gates, self.first)
        self.servers = {
            each.name: each
            for each in (NightServer('/a', 'a', parent), NightServer('/b', 'b', parent))
        }
        self.recorder = Recorder(folder / 'bags', self.clock, random.Random(seed + 1))
        # before the router, which publishes as soon as it starts
        self.learner: NightLearner | None = None
        self.router = NightRouter(
            self.clock,
            folder / 'router',
            self._router_parameters(),
            self.servers,
            on_placed=self.checks.on_placed,
            on_canary=self._on_canary,
        )
        self.learner = self._make_learner(parent)
        self.robots = [
            NightRobot(
                number, self.clock, self.router, self.world, self._on_ended, self.checks.on_chunk
            )
            for number in range(1, ROBOTS + 1)
        ]
        self.loop = NightLoop(
            self._loop_settings(parent), self.clock, self.router, self.servers, self.robots
        )
        self.faults = Faults(self, random.Random(seed + 2))
        self.clock.after_event = self._check
        self._learner_since_s = 0.0
        # size of the journal, and steps in it
        self._steps = 0, 0
        self._was_learning = True

    def _router_parameters(self) -> RouterParameters:
        return RouterParameters(
            slot_a=('/a',),
            slot_b=('/b',),
            gate_folder=str(self.gates),
            trace_folder=str(self.traces),
            canary_margin=0.2,
            canary_minimum_episodes=10,
            canary_watch_episodes=150,
            canary_watch_hours=0.3,
            canary_minimum_replies=50,
            canary_minimum_commands=1000,
        )

    def _make_learner(self, parent: Path) -> NightLearner:
        settings = LearnerSettings(
            folder=self.folder / 'learner',
            store=self.store,
            host=HOST,
            parent=parent,
            parameters=LearnerParameters(
                trainer=str(self.folder / 'trainer.yaml'), episodes_per_round=EPISODES_A_ROUND
            ),
        )
        return NightLearner(
            settings,
            self.clock,
            poisons=lambda: self.world.is_poisoned,
            on_trained=self._on_trained,
            announced=lambda: self.recorder.announced[-ANNOUNCED:],
            canary=lambda: self.router.canary,
        )

    def _loop_settings(self, parent: Path) -> LoopSettings:
        return LoopSettings(
            folder=self.journal,
            store=self.store,
            gates=self.gates,
            recordings=self.recorder.folder,
            champion=parent,
            gate_recordings=40,
            robot=self.folder / 'robot.yaml',
            period_s=LOOP_PERIOD_S,
        )

    # what happens

    def run(self, duration_s: float = NIGHT_S) -> None:
        self.clock.pass_time(duration_s)

    def close(self) -> None:
        """End all processes in an orderly way."""
        self.loop.stop()
        assert self.learner
        self.learner.stop()
        self.router.stop()
        for server in self.servers.values():
            server.close()

    def is_up(self, name: str) -> bool:
        process = {
            'loop': self.loop.conductor,
            'router': self.router.core,
            'learner': self.learner and self.learner.learner,
        }[name]
        return process is not None

    def ungated(self) -> list[str]:
        """Return the versions of the store that no gate has judged, the newest last."""
        found = observing.versions(self.store)
        records = observing.gate_records(self.gates, found)
        champion = digest_of(self.checks.champion)
        return [
            each.id
            for each in found
            if digest_of(each.id) not in records and digest_of(each.parent) == champion
        ]

    def refused(self) -> set[str]:
        """Return the digests that a gate has refused."""
        records = observing.gate_records(self.gates, observing.versions(self.store))
        return {digest for digest, record in records.items() if record.verdict == 'refused'}

    def _on_canary(self, message: CanaryState) -> None:
        self.checks.on_canary(message)
        if self.learner:
            self.learner.on_canary(message)

    def _on_trained(self, policy: str, is_poisoned: bool) -> None:
        if is_poisoned:
            self.world.poisoned.add(digest_of(policy))

    def _on_ended(self, ended: EndedEpisode) -> None:
        episode = self.recorder.take(ended)
        if episode and self.learner:
            self.learner.on_recorded(episode)

    def _count_steps(self) -> int:
        """Return how many entries of the journal are steps forward; restarts are none."""
        size = (self.journal / JOURNAL_FILE).stat().st_size
        if size != self._steps[0]:
            found = [each for each in read_journal(self.journal) if each.event in STEPS]
            self._steps = size, len(found)
        return self._steps[1]

    def _check(self) -> None:
        self.checks.on_champion(self.router.champion)
        self.checks.on_count(self._count_steps())
        learner = self.learner.learner if self.learner else None
        if learner and not self._was_learning:
            self._learner_since_s = self.clock.elapsed_s
        self._was_learning = learner is not None
        if learner:
            running_s = self.clock.elapsed_s - self._learner_since_s
            self.checks.on_parent(learner.shown.parent, running_s)
