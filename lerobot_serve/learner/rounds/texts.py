# SPDX-License-Identifier: Apache-2.0
"""What a learner says of its state, with what to do. Pure; any thread."""

from __future__ import annotations

from collections.abc import Sequence

from lerobot_serve.contract.records import RecordedEpisode

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
