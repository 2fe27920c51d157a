# SPDX-License-Identifier: Apache-2.0
"""
A robot for LeRobot that stands where it was last commanded to, and records every command: a line
with its joints each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lerobot.robots.config import RobotConfig
from lerobot.robots.robot import Robot

JOINTS = tuple(f'joint_{number}.pos' for number in range(6))


@RobotConfig.register_subclass('recorded')
@dataclass(kw_only=True)
class RecordedConfig(RobotConfig):
    record: str
    begin_at: float = 0.0


class Recorded(Robot):
    config_class = RecordedConfig
    name = 'recorded'
    observation_features = action_features = dict.fromkeys(JOINTS, float)
    is_connected = is_calibrated = True

    def __init__(self, config: RecordedConfig) -> None:
        super().__init__(config)
        self._joints = dict.fromkeys(JOINTS, config.begin_at)
        self._record = open(config.record, 'a', buffering=1)  # noqa: SIM115

    def connect(self, calibrate: bool = True) -> None:
        """Nothing to connect."""

    calibrate = configure = disconnect = connect

    def get_observation(self) -> dict[str, Any]:
        return dict(self._joints)

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        self._joints = dict(action)
        print(*action.values(), file=self._record)
        return action


def make_device_from_device_class(config: RecordedConfig) -> Recorded:
    return Recorded(config)
