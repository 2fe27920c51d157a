# SPDX-License-Identifier: Apache-2.0
"""What intervals.json of a bag says of its episode. Any thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lerobot_serve.experience.bag_files import INTERVALS_FILE, NotAnEpisode, read_object
from lerobot_serve.experience.recorded_episode import OUTCOMES

# of 50,000 intervals; what it becomes in memory is bounded, too
INTERVALS_LIMIT_BYTES = 8 << 20
# `source` of the control steps of a person
PERSON = 'person'
T = TypeVar('T')


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """See the module."""

    robot: str
    episode_id: str
    outcome: str
    control_steps: int
    control_steps_person: int
    policies: tuple[str, ...]


def read_facts(folder: Path) -> EpisodeFacts:
    """
    Return what the file says; one of an older recorder has no counts, which its intervals give.
    Raises NotAnEpisode and OSError.
    """
    content = read_object(folder / INTERVALS_FILE, INTERVALS_LIMIT_BYTES)
    outcome = _value(content, 'outcome', str)
    counts = _counts(content)
    policies = _value({'policies': [], **content}, 'policies', list)
    if not all(isinstance(each, str) for each in policies):
        raise NotAnEpisode(f'{INTERVALS_FILE}: policies must be strings')
    return EpisodeFacts(
        _value(content, 'robot', str),
        _value(content, 'episode_id', str),
        # a number of a judge that no message of an episode has
        outcome if outcome in OUTCOMES else '',
        *counts,
        tuple(policies),
    )


def _counts(content: dict[str, Any]) -> tuple[int, int]:
    """Return the number of control steps, and of those of a person."""
    if 'control_steps' in content:
        steps = _value(content, 'control_steps', int)
        return steps, _value(content, 'control_steps_person', int)
    steps = person = 0
    for interval in _value(content, 'intervals', list):
        if not isinstance(interval, dict):
            raise NotAnEpisode(f'{INTERVALS_FILE}: intervals must be objects')
        first, last = (_value(interval, name, int) for name in ('first_step', 'last_step'))
        steps += last - first + 1
        person += (last - first + 1) * (_value(interval, 'source', str) == PERSON)
    return steps, person


def _value(content: dict[str, Any], name: str, kind: type[T]) -> T:
    value = content.get(name)
    # a bool is an int for isinstance
    if type(value) is not kind:
        raise NotAnEpisode(
            f'{INTERVALS_FILE}: {name} must be of type {kind.__name__}, got {value!r:.40}'
        )
    return value
