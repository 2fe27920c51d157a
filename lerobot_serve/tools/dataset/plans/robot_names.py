# SPDX-License-Identifier: Apache-2.0
"""
What a dataset needs of a robot file: inputs, names, units, rate and command. Pure; any thread.

Limits, interlocks and the safe pose are left out: a recorded robot file may name a URDF that is
not on this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import hashlib
from typing import Any

from lerobot_serve.edge.robot import file
from lerobot_serve.edge.robot.description import (
    CameraInput,
    input_sources,
    RobotDescription,
    StateSource,
)
from lerobot_serve.edge.robot.file_format import FAR, parse_received_yaml, RobotFileError
from lerobot_serve.tools.recorder.known_robots import resolved

# of what a robot file says
NEEDED = ('name', 'fps', 'state', 'cameras', 'command', 'rename_map', 'units')
# limits that admit every value
WIDE = {'min': -FAR, 'max': FAR, 'max_step': 1.0}
IMAGES = 'observation.images.'
COMPRESSED = '/compressed'


@dataclass(frozen=True, slots=True)
class RobotInput:
    """
    One input of a robot: the topics it may be recorded under, and how it is read. `sources` are
    several where one topic has several states.
    """

    name: str
    topics: tuple[str, ...]
    max_age_ns: int
    sources: tuple[StateSource, ...] = ()
    camera: CameraInput | None = None


@dataclass(frozen=True, slots=True)
class RecordedRobot:
    """A robot file, its text, and its topics in the namespace of its edge."""

    text: str
    description: RobotDescription
    inputs: tuple[RobotInput, ...]
    command_topic: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def parse_robot(
    text: str, place: str, node: str, *, parse: Callable[[str, str], Any] = parse_received_yaml
) -> RecordedRobot:
    """
    Parse the robot file of an edge whose full name is `node`; `parse` reads YAML, by default that
    of a recording. Raises RobotFileError; `place` is for its text.
    """
    content = parse(text, place)
    if not isinstance(content, dict) or 'actions' not in content:
        raise RobotFileError(f'{place}: not a robot file: it has no actions')
    needed: dict[str, Any] = {key: content[key] for key in NEEDED if key in content}
    if isinstance(actions := content['actions'], dict):
        actions = {name: _without_limits(entry) for name, entry in actions.items()}
    needed['actions'] = actions
    robot = file.parse(needed, place)
    return RecordedRobot(
        text, robot, tuple(_inputs(robot, node)), resolved(robot.command.topic, node)
    )


def _without_limits(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {key: entry[key] for key in ('joint', 'motion') if key in entry} | WIDE


def _inputs(robot: RobotDescription, node: str) -> list[RobotInput]:
    """Return the inputs in the order of ExecutedAction.input_ids."""
    states: dict[str, list[StateSource]] = {}
    cameras: dict[str, CameraInput] = {}
    for name, source in input_sources(robot):
        if isinstance(source, CameraInput):
            cameras[name] = source
        elif isinstance(source, StateSource):
            states.setdefault(name, []).append(source)
    found = []
    for name, sources in states.items():
        topic = resolved(sources[0].topic, node)
        # of several, the edge keeps the bound of the last
        found.append(RobotInput(name, (topic,), _bound_ns(sources[-1]), tuple(sources)))
    for name, camera in cameras.items():
        topic = resolved(camera.topic, node)
        found.append(
            RobotInput(name, (topic, topic + COMPRESSED), _bound_ns(camera), camera=camera)
        )
    return found


def _bound_ns(source: StateSource | CameraInput) -> int:
    return int(source.max_age_s * 1e9)


def column_of(camera: str, policy_name: str, *, depth: bool) -> str:
    """Return the column of a camera; `policy_name` is its name for the policy."""
    name = policy_name or camera
    short = name.removeprefix(IMAGES).removeprefix('observation.').replace('/', '_')
    return f'observation.depth.{short}' if depth else f'{IMAGES}{short}'
