# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's three pickled messages, of 0.4.4 to 0.6.1, as checked dataclasses. Each is read with an
allow-list of its own.

Thread: any. Raises PickleRefused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lerobot_serve.peer_formats.safe_pickle import numpy_names, object_opcodes, torch_names
from lerobot_serve.peer_formats.safe_pickle.reader import KnownNames, Reader, walk
from lerobot_serve.peer_formats.safe_pickle.values import (
    AnyArray,
    Budget,
    Global,
    Limits,
    PickleRefused,
    Record,
)
from lerobot_serve.peer_formats.safe_pickle.writer import MODULE

MOST_ACTIONS = 10_000
OBSERVATION = Limits()
POLICY = Limits(pickle_bytes=2**20)
# LeRobot's server pickles every row of a chunk with a storage of its own
ACTIONS = Limits(opcodes=400_000, all_text_bytes=2**22)
T = TypeVar('T')


def record(name: str) -> dict[tuple[str, str], Global]:
    """Return the allow-list of one class of LeRobot."""
    return {(MODULE, name): Global(name, is_record=True)}


POLICY_NAMES: KnownNames = record('RemotePolicyConfig')
OBSERVATION_NAMES: KnownNames = {**numpy_names.NAMES, **record('TimedObservation')}
ACTION_NAMES: KnownNames = {**torch_names.NAMES, **record('TimedAction')}


@dataclass(frozen=True, slots=True)
class RemotePolicyConfig:
    """What a RobotClient asks to be served with."""

    policy_type: str
    pretrained_name_or_path: str
    # feature -> names of its elements, in order: 'observation.state' -> joints
    features: Mapping[str, tuple[str, ...]]
    actions_per_chunk: int
    device: str
    rename_map: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TimedObservation:
    """What a robot saw; arrays are read-only views of the pickle."""

    timestamp: float
    timestep: int
    values: Mapping[str, AnyArray | float | str]
    must_go: bool


@dataclass(frozen=True, slots=True)
class TimedAction:
    timestamp: float
    timestep: int
    action: AnyArray


def read_policy_config(data: bytes | memoryview) -> RemotePolicyConfig:
    """Return the RemotePolicyConfig of a pickle."""
    fields = fields_of(read(data, POLICY_NAMES, POLICY), 'RemotePolicyConfig')
    features = field(fields, 'lerobot_features', dict)
    renamed = field(fields, 'rename_map', dict) if 'rename_map' in fields else {}
    return RemotePolicyConfig(
        policy_type=field(fields, 'policy_type', str),
        pretrained_name_or_path=field(fields, 'pretrained_name_or_path', str),
        features={name: element_names(name, each) for name, each in features.items()},
        actions_per_chunk=field(fields, 'actions_per_chunk', int),
        device=field(fields, 'device', str),
        rename_map={name: text(name, other) for name, other in renamed.items()},
    )


def read_observation(data: bytes | memoryview, limits: Limits = OBSERVATION) -> TimedObservation:
    """Return the TimedObservation of a pickle."""
    fields = fields_of(read(data, OBSERVATION_NAMES, limits), 'TimedObservation')
    values = field(fields, 'observation', dict)
    return TimedObservation(
        timestamp=number(fields, 'timestamp'),
        timestep=field(fields, 'timestep', int),
        values={name: measured(name, value) for name, value in values.items()},
        must_go=field(fields, 'must_go', bool) if 'must_go' in fields else False,
    )


def read_actions(data: bytes | memoryview) -> list[TimedAction]:
    """Return the list of TimedAction of a pickle, as LeRobot's server writes it."""
    actions = read(data, ACTION_NAMES, ACTIONS)
    if type(actions) is not list or len(actions) > MOST_ACTIONS:
        raise PickleRefused(f'the pickle is not a list of at most {MOST_ACTIONS} TimedAction')
    return [timed_action(fields_of(each, 'TimedAction')) for each in actions]


def timed_action(fields: dict[str, object]) -> TimedAction:
    action = fields.get('action')
    if not isinstance(action, np.ndarray):
        raise PickleRefused('a TimedAction has no tensor')
    return TimedAction(number(fields, 'timestamp'), field(fields, 'timestep', int), action)


def read(data: bytes | memoryview, names: KnownNames, limits: Limits) -> object:
    """Return the one value of a pickle."""
    view = memoryview(data).toreadonly()
    if view.nbytes > limits.pickle_bytes:
        raise PickleRefused(
            f'the pickle has {view.nbytes} bytes; {limits.pickle_bytes} are allowed'
        )
    value, end = walk(Reader(view, names, Budget(limits)), object_opcodes.HANDLERS)
    if end != len(view):
        raise PickleRefused(f'the pickle is followed by {len(view) - end} bytes')
    return value


def fields_of(value: object, name: str) -> dict[str, object]:
    if type(value) is not Record or value.name != name or value.fields is None:
        raise PickleRefused(f'the pickle is no {name}')
    return value.fields


def field(fields: dict[str, object], name: str, kind: type[T]) -> T:
    value = fields.get(name)
    if type(value) is not kind:
        raise PickleRefused(f'{name} must be of type {kind.__name__}, got {type(value).__name__}')
    return value


def number(fields: dict[str, object], name: str) -> float:
    value = fields.get(name)
    return float(value) if type(value) is int else field(fields, name, float)


def text(name: str, value: object) -> str:
    if type(value) is not str:
        raise PickleRefused(f'{name} must be a text, got {type(value).__name__}')
    return value


def element_names(name: str, feature: object) -> tuple[str, ...]:
    """Return the names of the elements of a feature; none where it has none."""
    names = feature.get('names') if type(feature) is dict else ()
    if names is None:
        return ()
    if not isinstance(names, (list, tuple)):
        raise PickleRefused(f'feature {name} has no list of names')
    return tuple(text(f'a name in {name}', each) for each in names)


def measured(name: str, value: object) -> AnyArray | float | str:
    """Return what a robot measured: an array, a number or a text."""
    if isinstance(value, (np.ndarray, str)):
        return value
    if isinstance(value, (bool, int, float)):
        return float(value)
    raise PickleRefused(f'{name} is a {type(value).__name__}, not an array, a number or a text')
