"""
What the robot is: which topics make its state and cameras, which joints it moves, and within what
limits.

Read from one YAML file and checked as a whole; a mistake is named with its place in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
import re
from typing import Any

import yaml

from lerobot_serve.wire.schema import ID_LIMIT

TOPIC = re.compile(r'(/|~/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*')
EXPONENT = re.compile(r'[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$')


class RobotFileError(ValueError):
    """The robot file is wrong; the text says where, what was given and what is allowed."""


@dataclass(frozen=True, slots=True)
class Joints:
    """
    Where the state comes from; `names` are the joints' names in the messages, in the policy's
    order.
    """

    topic: str
    names: tuple[str, ...]
    max_age_s: float


@dataclass(frozen=True, slots=True)
class CameraInput:
    """Where the frames of one camera come from."""

    name: str
    topic: str
    max_age_s: float


@dataclass(frozen=True, slots=True)
class ActionLimit:
    """One action: the joint it moves and what it may ask of it, in the joint's unit (rad or m)."""

    name: str
    joint: str
    low: float
    high: float
    max_step: float


@dataclass(frozen=True, slots=True)
class Robot:
    """A robot as an edge controller needs it."""

    name: str
    fps: float
    state: Joints
    cameras: tuple[CameraInput, ...]
    actions: tuple[ActionLimit, ...]
    command_topic: str

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(f'{joint}.pos' for joint in self.state.names)

    @property
    def action_names(self) -> tuple[str, ...]:
        return tuple(action.name for action in self.actions)

    @property
    def action_joints(self) -> tuple[str, ...]:
        return tuple(action.joint for action in self.actions)


def load(path: Path) -> Robot:
    """Return the robot that the file describes. Raises RobotFileError."""
    try:
        content = yaml.load(path.read_text('utf-8'), _Loader)
    except OSError as error:
        raise RobotFileError(f'{path}: cannot be read ({error.strerror})') from None
    except Exception as error:
        # besides its own errors the library lets through those of int, dict and datetime
        raise RobotFileError(f'{path}: not YAML ({_in_one_line(error)})') from None
    return parse(content, str(path))


def parse(content: Any, place: str) -> Robot:
    """Return the robot of a file's content. Raises RobotFileError."""
    top = _Table(content, place, 'name fps state cameras actions command')
    state = _Table(top.need('state'), f'{place}: state', 'topic joints max_age_s')
    joints = state.need('joints')
    if not isinstance(joints, list) or not joints or not all(map(_is_name, joints)):
        raise RobotFileError(f'{state.place}: joints must be a list of names, got {joints!r}')
    _refuse_twice(joints, f'{state.place}: joints')
    command = _Table(top.need('command'), f'{place}: command', 'topic')
    actions = _named(top.need('actions'), f'{place}: actions')
    robot = Robot(
        top.text('name'),
        top.number('fps', 0.1, 1000),
        Joints(state.topic('topic'), tuple(joints), state.number('max_age_s', 0.001, 60)),
        tuple(_camera(*item) for item in _named(top.need('cameras'), f'{place}: cameras')),
        tuple(_action(*item) for item in actions),
        command.topic('topic'),
    )
    if not robot.actions:
        raise RobotFileError(f'{place}: actions is empty; name what the robot can do')
    _refuse_twice([action.joint for action in robot.actions], f'{place}: actions: joint')
    return robot


def _camera(name: str, content: Any, place: str) -> CameraInput:
    table = _Table(content, place, 'topic max_age_s')
    return CameraInput(name, table.topic('topic'), table.number('max_age_s', 0.001, 60))


def _action(name: str, content: Any, place: str) -> ActionLimit:
    table = _Table(content, place, 'joint min max max_step')
    low, high = table.number('min', -1e6, 1e6), table.number('max', -1e6, 1e6)
    if not low < high:
        raise RobotFileError(f'{place}: min must be below max, got {low:g} and {high:g}')
    return ActionLimit(name, table.text('joint'), low, high, table.number('max_step', 1e-6, 1e6))


class _Table:
    """A mapping of the file that knows its place and its keys."""

    def __init__(self, content: Any, place: str, keys: str) -> None:
        if not isinstance(content, dict):
            raise RobotFileError(f'{place}: expected {keys.replace(" ", ", ")}, got {content!r}')
        unknown = [key for key in content if key not in keys.split()]
        if unknown:
            raise RobotFileError(
                f'{place}: unknown {unknown[0]!r}; allowed are {keys.replace(" ", ", ")}'
            )
        self._content, self.place = content, place

    def need(self, key: str) -> Any:
        if key not in self._content:
            raise RobotFileError(f'{self.place}: {key} is missing')
        return self._content[key]

    def text(self, key: str) -> str:
        value = self.need(key)
        if not _is_name(value):
            raise RobotFileError(
                f'{self.place}: {key} must be a text of at most {ID_LIMIT} bytes, got {value!r}'
            )
        return value

    def topic(self, key: str) -> str:
        value = self.text(key)
        if not TOPIC.fullmatch(value) or '__' in value:
            raise RobotFileError(
                f'{self.place}: {key} must be the name of a topic like joint_states or '
                f'/arm/joint_states, got {value!r}'
            )
        return value

    def number(self, key: str, low: float, high: float) -> float:
        value = self.need(key)
        if type(value) not in (int, float) or value != value:
            raise RobotFileError(f'{self.place}: {key} must be a number, got {value!r}')
        if not low <= value <= high:
            raise RobotFileError(
                f'{self.place}: {key} must be in [{low:g}, {high:g}], got {value}'
            )
        return float(value)


def _is_name(value: Any) -> bool:
    return (
        isinstance(value, str)
        and bool(value.strip())
        and value.isprintable()
        and len(value.encode()) <= ID_LIMIT
    )


def _named(content: Any, place: str) -> list[tuple[str, Any, str]]:
    """Return name, content and place of each entry of a mapping."""
    if not isinstance(content, dict) or not all(map(_is_name, content)):
        raise RobotFileError(f'{place}: expected names with their settings, got {content!r}')
    return [(name, value, f'{place}: {name}') for name, value in content.items()]


def _refuse_twice(names: list[str], place: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RobotFileError(f'{place}: {name!r} is there twice')


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is there twice is a mistake: of two limits one would be ignored."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                text = f'{key.value!r} is there twice'
                raise yaml.constructor.ConstructorError(problem=text, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 1e-3 for a text, unlike YAML 1.2 and unlike who writes it
_Loader.add_implicit_resolver('tag:yaml.org,2002:float', EXPONENT, list('-+.0123456789'))


def _in_one_line(error: Exception) -> str:
    mark = getattr(error, 'problem_mark', None)
    text = getattr(error, 'problem', None) or (str(error).splitlines() or ['nested too deep'])[0]
    return f'line {mark.line + 1}, column {mark.column + 1}: {text}' if mark else text
