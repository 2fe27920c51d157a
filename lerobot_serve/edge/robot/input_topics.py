"""The input topics of a robot, by the name of the input. Pure functions; any thread."""

from __future__ import annotations

from typing import NamedTuple

from lerobot_serve.edge.robot.description import CameraInput, RobotDescription, StateSource


class InputTopic(NamedTuple):
    """Topic, message type and age limits of one input; a stamp limit of 0 is not checked."""

    topic: str
    type: str
    max_age_s: float
    max_stamp_age_s: float


def state_input_names(robot: RobotDescription) -> tuple[str, ...]:
    """Return the names of the state inputs, in order."""
    return tuple(f'state from {source.topic}' for source in robot.state)


def input_topics(robot: RobotDescription) -> dict[str, InputTopic]:
    """Return the topic of each input, by name: states, then cameras."""
    states = zip(state_input_names(robot), robot.state, strict=True)
    topics = {name: _topic(source) for name, source in states}
    return topics | {camera.name: _topic(camera) for camera in robot.cameras}


def input_max_ages_ns(robot: RobotDescription) -> dict[str, int]:
    """Return the maximum age of each input, by name [ns]."""
    return {name: int(one.max_age_s * 1e9) for name, one in input_topics(robot).items()}


def _topic(source: StateSource | CameraInput) -> InputTopic:
    return InputTopic(source.topic, source.type, source.max_age_s, source.max_stamp_age_s)
