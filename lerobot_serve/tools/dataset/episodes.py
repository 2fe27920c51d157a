# SPDX-License-Identifier: Apache-2.0
"""
What a dataset is made of: what it needs of a robot file (inputs, names, units, rate and command),
rows that name the messages they need, and filters that select episodes. Plain; any thread.

Limits, interlocks and the safe pose are left out: a recorded robot file may name a URDF that is
not on this machine. Filters of one kind are alternatives (success, failure: every labelled
episode); those of different kinds all hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
import hashlib
import math
from typing import Any, NamedTuple

from lerobot_serve.edge.robot import file
from lerobot_serve.edge.robot.description import (
    CameraInput,
    input_sources,
    RobotDescription,
    StateSource,
)
from lerobot_serve.edge.robot.file_format import FAR, parse_received_yaml, RobotFileError
from lerobot_serve.errors import UserError, WrongCommandLine
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


class DatasetError(UserError):
    """Bags that cannot become this dataset; the text says why and what to do."""


class MessageKey(NamedTuple):
    """One message of the bags: its topic, and its number among the messages of that topic."""

    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """
    One row: the messages of the inputs in the order of the robot, the CDR bytes of its
    ExecutedAction (empty for sampled rows, whose last message is the command), and its time.
    """

    messages: tuple[MessageKey, ...]
    executed: bytes
    received_ns: int


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """
    The rows of one episode.

    `is_whole`: its last row is the last of the attempt; `cut` says why it is not. `left_out`
    counts rows that are not in the dataset, by reason. `first_numbers` has the number of the first
    message of its bag, by topic.
    """

    client_id: str
    episode_id: str
    robot: RecordedRobot
    rows: tuple[PlannedRow, ...]
    fps: int
    task: str = ''
    outcome: str = ''
    score: float = float('nan')
    is_whole: bool = True
    cut: str = ''
    left_out: Counter[str] = field(default_factory=Counter)
    slots: frozenset[str] = frozenset()
    policies: frozenset[str] = frozenset()
    intervened: bool = False
    first_numbers: Mapping[str, int] = field(default_factory=dict)
    # of a sampled episode, whose id is the time of its first row
    bag: str = ''

    @property
    def label(self) -> bool | None:
        """Whether the attempt succeeded; None where this is not known."""
        if self.cut or not self.is_whole or self.outcome not in ('success', 'failure'):
            return None
        return self.outcome == 'success'

    @property
    def digest(self) -> str:
        """
        The identity of its rows and of its robot file. What other bags may add is not in it: the
        end, the task and the outcome.
        """
        content = hashlib.sha256()
        about = (self.client_id, self.episode_id, self.robot.text, self.cut, str(self.fps))
        for text in about:
            content.update(f'{len(text)}:{text}'.encode())
        for row in self.rows:
            # an executed row names its messages by their source timestamps, a sampled one its time
            numbers = [key.number - self.first_numbers.get(key.topic, 0) for key in row.messages]
            content.update(row.executed or f'{row.received_ns}:{numbers}'.encode())
        return content.hexdigest()

    @property
    def labels(self) -> tuple[str, str, float | None, bool]:
        """What is written with the rows and is not in the digest."""
        score = None if math.isnan(self.score) else self.score
        return self.task, self.outcome, score, self.is_whole

    @property
    def title(self) -> str:
        """The episode in a line of text; ids are of other machines."""
        where = f' in {self.bag}' if self.bag else ''
        return f'{self.client_id!r} episode {self.episode_id!r}{where}'


WORDS = {'success': 'outcome', 'failure': 'outcome', 'intervention': 'intervention'}
KEYS = ('slot', 'policy')
ALLOWED = 'success, failure, intervention, slot=NAME, policy=FINGERPRINT'


class Filter(NamedTuple):
    """One filter: its kind and what it asks for."""

    kind: str
    value: str


def parse_filter(text: str) -> Filter:
    """Return the filter of a text. Raises WrongCommandLine."""
    key, has_value, value = text.partition('=')
    if not has_value and key in WORDS:
        return Filter(WORDS[key], key)
    if has_value and key in KEYS and value:
        return Filter(key, value)
    raise WrongCommandLine(f'--filter must be one of {ALLOWED}, got {text!r}')


def is_selected(episode: EpisodePlan, filters: Iterable[Filter]) -> bool:
    """Return whether an episode passes the filters."""
    kinds: dict[str, list[str]] = {}
    for one in filters:
        kinds.setdefault(one.kind, []).append(one.value)
    return all(any(_fits(episode, kind, value) for value in kinds[kind]) for kind in kinds)


def _fits(episode: EpisodePlan, kind: str, value: str) -> bool:
    if kind == 'outcome':
        return episode.label is (value == 'success')
    if kind == 'intervention':
        return episode.intervened
    if kind == 'slot':
        return value in episode.slots
    # the beginning of a fingerprint, as tables show it
    return any(policy.startswith(value) for policy in episode.policies)
