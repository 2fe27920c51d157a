# SPDX-License-Identifier: Apache-2.0
"""
The message RecordedEpisode: an episode whose bag is whole on a disk, and the rules that its fields
have beside their types. Pure; any thread.

Who commanded the robot when, in one episode, and with which policies: the file intervals.json of
its bag. Any thread.
"""

from __future__ import annotations

import json
from pathlib import Path
import re

import msgspec
from msgspec import Struct

from lerobot_serve.atomic_file import replacement_of, sync_folder
from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import ExecutedAction, RecordedEpisode
from lerobot_serve.contract.types import Constants
from lerobot_serve.experience.bag_files import INTERVALS_FILE, NotAnEpisode, read_object
from lerobot_serve.files.load import load, Refused

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


# of 50,000 intervals; what it becomes in memory is bounded, too
INTERVALS_LIMIT_BYTES = 8 << 20
# `source` of the control steps of a person
PERSON = 'person'


class Interval(Struct):
    """Consecutive control steps of one source; times are by the clock of the edge."""

    source: str
    first_step: int
    last_step: int
    begin_ns: int = 0
    end_ns: int = 0


class EpisodeSummary(Struct, kw_only=True):
    """
    What the file says. `policies` are the first POLICIES_LIMIT that its actions name; `outcome` is
    a word, empty for none.
    """

    robot: str
    node: str = ''
    episode_id: str
    outcome: str
    ended: str = ''
    control_steps: int = 0
    control_steps_person: int = 0
    policies: list[str] = []
    intervals: list[Interval] = []

    @property
    def has_person(self) -> bool:
        """Return whether a person commanded the robot."""
        return any(each.source == PERSON for each in self.intervals)

    def add(self, action: ExecutedAction) -> None:
        """Count one executed action of this episode."""
        self.control_steps += 1
        source = action.source.word
        self.control_steps_person += source == PERSON
        self._add_policy(action.policy)
        last = self.intervals[-1] if self.intervals else None
        step, stamp_ns = action.control_step, action.stamp.ns
        if last and last.source == source:
            last.last_step, last.end_ns = step, stamp_ns
        else:
            self.intervals.append(Interval(source, step, step, stamp_ns, stamp_ns))

    def _add_policy(self, policy: str) -> None:
        is_new = policy and policy not in self.policies
        if is_new and len(self.policies) < POLICIES_LIMIT:
            self.policies.append(policy)

    def count_intervals(self) -> None:
        """Count the control steps by the intervals, where a file of an older recorder has none."""
        for each in self.intervals:
            steps = each.last_step - each.first_step + 1
            self.control_steps += steps
            self.control_steps_person += steps * (each.source == PERSON)


def write_summary(folder: Path, summary: EpisodeSummary) -> None:
    """Write intervals.json into the folder of a bag. Raises OSError."""
    content = {**msgspec.to_builtins(summary), 'intervention': summary.has_person}
    with replacement_of(folder / INTERVALS_FILE, durable=True) as part:
        part.write_text(json.dumps(content, indent=1) + '\n')
        sync_folder(part)


def read_summary(folder: Path) -> EpisodeSummary:
    """Return what the file says. Raises NotAnEpisode and OSError."""
    content = read_object(folder / INTERVALS_FILE, INTERVALS_LIMIT_BYTES)
    try:
        summary = load(EpisodeSummary, content, INTERVALS_FILE)
        if ('control_steps' in content) != ('control_steps_person' in content):
            raise Refused(INTERVALS_FILE, 'control_steps and control_steps_person need each other')
        if 'control_steps' not in content and 'intervals' not in content:
            raise Refused(INTERVALS_FILE, 'control_steps or intervals is missing')
    except Refused as refused:
        raise NotAnEpisode(str(refused)) from None
    if 'control_steps' not in content:
        summary.count_intervals()
    return summary
