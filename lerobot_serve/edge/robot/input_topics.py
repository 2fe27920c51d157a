# SPDX-License-Identifier: Apache-2.0
"""The input topics of a robot, by the name of the input. Pure functions; any thread."""

from __future__ import annotations

from typing import NamedTuple

from lerobot_serve.edge.robot.description import CameraInput, RobotDescription, StateSource


class InputTopic(NamedTuple):
    """Topic, message type and maximum age since arrival of one input."""

    topic: str
    type: str
    max_age_s: float


def state_input_names(robot: RobotDescription) -> tuple[str, ...]:
    """Return the names of the state inputs, in order."""
    return tuple(f'state from {source.topic}' for source in robot.state)


def input_sources(robot: RobotDescription) -> list[tuple[str, StateSource | CameraInput]]:
    """Return name and source of each input; several states of one topic share a name."""
    sources: list[tuple[str, StateSource | CameraInput]] = []
    sources += zip(state_input_names(robot), robot.state, strict=True)
    sources += [(camera.name, camera) for camera in robot.cameras]
    return sources


def input_topics(robot: RobotDescription) -> dict[str, InputTopic]:
    """Return the topic of each input, by name."""
    return {
        name: InputTopic(source.topic, source.type, source.max_age_s)
        for name, source in input_sources(robot)
    }


def input_max_ages_ns(robot: RobotDescription) -> dict[str, int]:
    """Return the maximum age of each input, by name [ns]."""
    return {name: int(one.max_age_s * 1e9) for name, one in input_topics(robot).items()}
