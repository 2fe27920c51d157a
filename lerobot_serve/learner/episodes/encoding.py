# SPDX-License-Identifier: Apache-2.0
"""
Episodes as JSON, for the memory and for the child that looks for them, and what a learner asks of
one besides the rules of its message. Pure; any thread.
"""

from __future__ import annotations

from dataclasses import asdict
import json
from typing import Any

from lerobot_serve.experience.recorded_episode import RecordedEpisode


def check_usable(episode: RecordedEpisode) -> None:
    """Raise ValueError for an episode without a name or full path, or with control characters."""
    for name in ('client_id', 'episode_id', 'host', 'path'):
        value = getattr(episode, name)
        if not value or not value.isprintable():
            raise ValueError(f'{name} must be printable and not empty, got {value!r:.80}')
    if not episode.path.startswith('/'):
        raise ValueError(f'path must be a full path, got {episode.path!r:.80}')


def to_json(episode: RecordedEpisode) -> str:
    """Return one line."""
    return json.dumps(asdict(episode))


def from_json(values: dict[str, Any]) -> RecordedEpisode:
    """Return the episode of a decoded line of `to_json`. Raises ValueError."""
    try:
        return RecordedEpisode(**{**values, 'policies': tuple(values['policies'])})
    except (TypeError, KeyError) as error:
        raise ValueError(f'an episode lacks a field or has another one: {error}') from None
