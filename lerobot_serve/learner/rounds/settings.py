# SPDX-License-Identifier: Apache-2.0
"""
What a learner is set to, counts and tells, and what it says of its state, with what to do. Plain
data and pure functions; any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from lerobot_serve.contract.records import LearnerState, RecordedEpisode
from lerobot_serve.learner.parameters import LearnerParameters

SEEN_LIMIT = 200_000


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """
    What a learner has at start. `parent` is the folder of the policy that the first round builds
    on; None for none.
    """

    folder: Path
    store: Path
    host: str
    parent: Path | None
    parameters: LearnerParameters

    @property
    def dataset(self) -> Path:
        return self.folder / 'dataset'

    @property
    def rounds(self) -> Path:
        return self.folder / 'rounds'


class LearnerListener(Protocol):
    """What a learner calls, in the thread `rounds`; the node implements it."""

    def on_state(self, shown: LearnerState) -> None:
        """Show a state, which lacks time and name: at each change, and each second."""

    def on_version(self, version_id: str) -> None:
        """Announce a version of the store."""

    def log_info(self, text: str) -> None: ...

    def log_warning(self, text: str) -> None: ...


@dataclass(slots=True)
class Counts:
    """
    What was refused or failed, by reason, and how rounds ended, since start. An episode that is
    looked at again and again counts once for each reason.
    """

    dropped: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def drop(self, reason: str, key: str = '') -> bool:
        """Count; return whether this is new for the key."""
        if key and (reason, key) in self._seen:
            return False
        if key:
            # announcements of others are not bounded
            if len(self._seen) >= SEEN_LIMIT:
                self._seen.clear()
            self._seen.add((reason, key))
        self.dropped[reason] += 1
        return True


TEXT_LIMIT, NOTE_LIMIT = 1024, 1000
START = 'the service ~/start_round begins one now'


def waiting_text(*, new: int, wanted: int, failure: str, is_staging: bool = False) -> str:
    """
    Return the text of WAITING; `failure` is why the last round failed, `is_staging` whether
    episodes are converted ahead of a round.
    """
    if failure:
        return _cut(f'{failure}; {START}')
    missing = max(0, wanted - new)
    if not missing:
        return 'a round begins'
    episodes = 'episode' if missing == 1 else 'episodes'
    meanwhile = ', and converts those that are there' if is_staging else ''
    return f'waits for {missing} more {episodes} ({new} of {wanted}){meanwhile}; {START}'


def running_text(what: str, number: int, pauses: bool) -> str:
    """Return the text of a running round."""
    then = '; then the learner pauses' if pauses else ''
    return f'round {number}: {what}{then}' if number else f'a round begins: {what}{then}'


PAUSED_TEXT = 'paused by a person; the service ~/resume lets rounds begin'
LOOKING_TEXT = 'looks for episodes in the folders'


def note_text(number: int, episodes: Sequence[RecordedEpisode], total: int) -> str:
    """Return the note of a version: what its round trained on."""
    helped = sum(1 for each in episodes if each.control_steps_person)
    return f'round {number}: {len(episodes)} new episodes, {helped} with a person; {total} in all'


def failure_text(number: int, text: str, retry_s: float) -> str:
    """Return why a round failed and when the next one may begin, on one printable line."""
    line = ' '.join(text.split())
    printable = ''.join(each if each.isprintable() else '?' for each in line)
    what = f'round {number} failed' if number else 'no round'
    return f'{_cut(f"{what}: {printable}", 800)}. The next one may begin after {retry_s:.0f} s'


def _cut(text: str, limit: int = TEXT_LIMIT) -> str:
    return text if len(text) <= limit else f'{text[: limit - 3]}...'
