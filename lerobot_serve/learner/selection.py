# SPDX-License-Identifier: Apache-2.0
"""
Which episodes a learner trains on, by outcome and interventions, in the words of
`lerobot-serve dataset --filter`, and where their bags are. Any thread; reads no bag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import os
from pathlib import Path
from typing import NamedTuple

from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.experience.recorded_episode import word_of

SUCCESS, FAILURE, INTERVENTION = 'success', 'failure', 'intervention'
FILTERS = (SUCCESS, FAILURE, INTERVENTION)
OTHER_HOST, MISSING, UNREADABLE = 'other_host', 'missing', 'unreadable'


def is_selected(episode: RecordedEpisode, filters: Sequence[str]) -> bool:
    """
    Return whether an episode passes: success and failure are alternatives, intervention holds
    besides.
    """
    outcomes = [each for each in filters if each != INTERVENTION]
    has_outcome = not outcomes or word_of(episode.outcome) in outcomes
    return has_outcome and (INTERVENTION not in filters or episode.control_steps_person > 0)


class Place(NamedTuple):
    """Where a copy of a bag is."""

    host: str
    path: str


@dataclass(frozen=True, slots=True)
class Availability:
    """The readable copies; without one the reason in a word, and what to do."""

    paths: tuple[Path, ...] = ()
    reason: str = ''
    text: str = ''


def find_bag(places: Sequence[Place], host: str) -> Availability:
    """
    Return the copies that this machine can read, its own first, also of other hosts: a mounted
    folder. Which of them is whole only its content says.
    """
    found = [_look(place, host) for place in sorted(places, key=lambda each: each.host != host)]
    if paths := tuple(dict.fromkeys(path for each in found for path in each.paths)):
        return Availability(paths)
    return found[0] if found else Availability((), MISSING, 'no place of the bag is known')


def _look(place: Place, host: str) -> Availability:
    path = Path(place.path)
    try:
        exists = path.exists()
        is_readable = exists and os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))
    except (OSError, ValueError):
        exists = is_readable = False
    if is_readable:
        return Availability((path,))
    if exists:
        return Availability(
            (), UNREADABLE, f'{path} may not be read by this user; change its permissions'
        )
    if place.host != host:
        return Availability(
            (),
            OTHER_HOST,
            f'{path} is on {place.host}; mount that folder here under the same path, or copy the '
            'bag into one of episode_folders',
        )
    return Availability(
        (), MISSING, f'{path} is not there any more; copy the bag into one of episode_folders'
    )
