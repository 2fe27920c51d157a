# SPDX-License-Identifier: Apache-2.0
"""One process of a fleet, and the order of their starts. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from lerobot_serve.tools.fleet.ros_arguments import ros_arguments


class Stage(IntEnum):
    """Order of the start; the end is in the opposite order, so that robots come to rest first."""

    DASHBOARD = 0
    # ends after the robots, so that it has their last step
    RECORDER = 1
    SERVER = 2
    ROUTER = 3
    GATEWAY = 4
    SIMULATION = 5
    ROBOT = 6
    # of the learning loop: a conductor ends before what it steers
    LEARNER = 7
    LOOP = 8


@dataclass(frozen=True, slots=True)
class FleetProcess:
    """
    One process: the name of its lines of output, its executable, namespace and parameters; one
    with a `command` is a verb of `lerobot-serve` with these words.
    """

    name: str
    stage: Stage
    executable: str
    namespace: str
    values: dict[str, Any]
    log_level: str = ''
    command: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The full name of the node; that of a verb is its own."""
        if self.command:
            return self.command[0]
        return f'/{self.namespace}/{self.executable}'.replace('//', '/')

    @property
    def arguments(self) -> list[str]:
        """The command line behind the executable."""
        if self.command:
            return list(self.command)
        return ros_arguments(
            self.executable, self.values, namespace=self.namespace, log_level=self.log_level
        )
