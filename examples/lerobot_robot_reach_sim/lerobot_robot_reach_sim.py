# SPDX-License-Identifier: Apache-2.0
"""
The simulated arm of lerobot_serve as a robot of LeRobot: `--robot.type=reach_sim`.

Each action moves the arm for one control step; between actions its time stands still. The task is
to move the hand to a red disc and to hold it there; then the next target is drawn. LeRobot's
control loop calls, one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
import json
from pathlib import Path
from typing import Any

from lerobot.robots.config import RobotConfig
from lerobot.robots.robot import Robot
import numpy as np

from lerobot_serve.sim import cameras
from lerobot_serve.sim.arm import Arm, JOINT_NAMES
from lerobot_serve.sim.scene import AttemptResult, ReachScene

IMAGE_SHAPE = (224, 224, 3)


@RobotConfig.register_subclass('reach_sim')
@dataclass(kw_only=True)
class ReachSimConfig(RobotConfig):
    """
    seed        the sequence of targets
    control_hz  each action moves the arm for 1 / control_hz
    joints      the order of the joints in observations and actions
    results     file that gets a line of JSON for each attempt; empty: none
    """

    seed: int = 1
    control_hz: float = 30.0
    joints: list[str] = field(default_factory=lambda: list(JOINT_NAMES))
    results: str = ''

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(self.joints) != sorted(JOINT_NAMES):
            raise ValueError(f'joints must be {", ".join(JOINT_NAMES)}, in any order')


class ReachSim(Robot):
    """See the module. LeRobot finds the class by the name of its configuration."""

    config_class = ReachSimConfig
    name = 'reach_sim'

    def __init__(self, config: ReachSimConfig) -> None:
        super().__init__(config)
        self._scene = ReachScene(Arm(), np.random.default_rng(config.seed))
        self._step_s = 1 / config.control_hz
        # name of an action [rad] -> its joint, in the order of this robot
        self._joints = {f'{name}.pos': JOINT_NAMES.index(name) for name in config.joints}
        self._results = Path(config.results) if config.results else None
        self._attempts = 0
        self._is_connected = False

    @property
    def observation_features(self) -> dict[str, Any]:
        return {**self.action_features, **dict.fromkeys(cameras.NAMES, IMAGE_SHAPE)}

    @property
    def action_features(self) -> dict[str, Any]:
        return dict.fromkeys(self._joints, float)

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    @property
    def is_calibrated(self) -> bool:
        return True

    def connect(self, calibrate: bool = True) -> None:
        self._is_connected = True

    def calibrate(self) -> None:
        """Nothing to calibrate."""

    def configure(self) -> None:
        """Nothing to configure."""

    def disconnect(self) -> None:
        self._is_connected = False

    def get_observation(self) -> dict[str, Any]:
        """Return the angle of each joint [rad] and the image of each camera."""
        height, width, _ = IMAGE_SHAPE
        images = {name: self._scene.render(name, height, width) for name in cameras.NAMES}
        positions = self._scene.arm.positions.tolist()
        return {**{name: positions[at] for name, at in self._joints.items()}, **images}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        """Move for one control step; a joint without an action is an error."""
        command = np.zeros(len(JOINT_NAMES))
        for name, at in self._joints.items():
            command[at] = action[name]
        self._scene.arm.step(command, self._step_s)
        if result := self._scene.step(self._step_s):
            self._report(result)
        return action

    def _report(self, result: AttemptResult) -> None:
        self._attempts += 1
        text = 'on the target' if result.success else 'NOT on the target'
        print(
            f'attempt {self._attempts}: {text} after {result.duration_s:.1f} s of actions',
            flush=True,
        )
        if self._results:
            found = {
                'success': result.success,
                'duration_s': round(result.duration_s, 3),
                'distance_m': round(result.distance_m, 4),
            }
            with self._results.open('a') as file:
                file.write(json.dumps(found) + '\n')
