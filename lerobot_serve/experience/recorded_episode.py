# SPDX-License-Identifier: Apache-2.0
"""
The message RecordedEpisode: an episode whose bag is whole on a disk, and the rules that its fields
have beside their types. Pure; any thread.
"""

from __future__ import annotations

import re

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.contract.types import Constants

RECORDED_TYPE = 'lerobot_serve_interfaces/msg/RecordedEpisode'
POLICIES_LIMIT = 16
SHA256 = re.compile('[0-9a-f]{64}')
SECOND_NS = 10**9
# the range of builtin_interfaces/Time without times before 1970
LAST_NS = (1 << 31) * SECOND_NS - 1


def word_of(outcome: Constants) -> str:
    """Return an outcome in one word; empty for none, as in files."""
    return outcome.word if outcome else ''


# the number of each in the message is its place; the first one: no outcome was reported
OUTCOMES = tuple(map(word_of, RecordedEpisode.Outcome))


def check_recorded(episode: RecordedEpisode) -> None:
    """Raise ValueError for an episode that no recorder announces."""
    if episode.outcome >= len(OUTCOMES):
        raise ValueError(f'outcome must be one of {OUTCOMES}, got {word_of(episode.outcome)!r}')
    if not SHA256.fullmatch(episode.sha256):
        raise ValueError(f'sha256 must have 64 digits in 0-9a-f, got {episode.sha256!r:.80}')
    _check_range('stamp', episode.stamp.ns, LAST_NS)
    _check_range('control_steps', episode.control_steps, (1 << 32) - 1)
    _check_range('size_bytes', episode.size_bytes, (1 << 64) - 1)
    _check_range('control_steps_person', episode.control_steps_person, episode.control_steps)


def _check_range(name: str, value: int, last: int) -> None:
    if not 0 <= value <= last:
        raise ValueError(f'{name} must be in [0, {last}], got {value}')


def decode_recorded(raw: bytes) -> RecordedEpisode:
    """Return the message of CDR bytes. Raises Malformed."""
    episode = decode(RecordedEpisode, raw)
    try:
        check_recorded(episode)
    except ValueError as error:
        raise Malformed('recorded_episode', str(error)) from None
    return episode
