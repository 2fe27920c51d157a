# SPDX-License-Identifier: Apache-2.0
"""What intervals.json of a bag says of its episode. Any thread."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, UNSET, UnsetType

from lerobot_serve.experience.bag_files import INTERVALS_FILE, NotAnEpisode, read_object
from lerobot_serve.experience.recorded_episode import OUTCOMES
from lerobot_serve.files.load import load, Refused

# of 50,000 intervals; what it becomes in memory is bounded, too
INTERVALS_LIMIT_BYTES = 8 << 20
# `source` of the control steps of a person
PERSON = 'person'


class Interval(Struct, frozen=True):
    """Control steps of one source."""

    source: str
    first_step: int
    last_step: int

    @property
    def steps(self) -> int:
        return self.last_step - self.first_step + 1


class EpisodeFacts(Struct, frozen=True):
    """See the module; a file of an older recorder has no counts, which its intervals give."""

    robot: str
    episode_id: str
    outcome: str
    policies: tuple[str, ...] = ()
    control_steps: int | UnsetType = UNSET
    control_steps_person: int | UnsetType = UNSET
    intervals: tuple[Interval, ...] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.control_steps is UNSET) != (self.control_steps_person is UNSET):
            raise ValueError('control_steps and control_steps_person need each other')
        if self.control_steps is UNSET and self.intervals is UNSET:
            raise ValueError('control_steps or intervals is missing')

    @property
    def known_outcome(self) -> str:
        """The outcome; empty for a number of a judge that no message of an episode has."""
        return self.outcome if self.outcome in OUTCOMES else ''

    @property
    def steps(self) -> int:
        if not isinstance(self.control_steps, UnsetType):
            return self.control_steps
        return sum(each.steps for each in self.intervals or ())

    @property
    def steps_of_person(self) -> int:
        if not isinstance(self.control_steps_person, UnsetType):
            return self.control_steps_person
        return sum(each.steps for each in self.intervals or () if each.source == PERSON)


def read_facts(folder: Path) -> EpisodeFacts:
    """Return what the file says. Raises NotAnEpisode and OSError."""
    content = read_object(folder / INTERVALS_FILE, INTERVALS_LIMIT_BYTES)
    try:
        return load(EpisodeFacts, content, INTERVALS_FILE)
    except Refused as refused:
        raise NotAnEpisode(str(refused)) from None
