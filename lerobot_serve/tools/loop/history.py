# SPDX-License-Identifier: Apache-2.0
"""
What the loop did, in words: each event, then what has become of the versions, which policy is the
champion, and what waits for a person. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.tools.loop.journal import JournalEntry, LoopEvent
from lerobot_serve.tools.output.text import format_local

FAILED = '_failed'
# events that say what the rollout is from then on, in words for "now"
STATES: dict[str, str] = {
    LoopEvent.IDLE: 'no rollout',
    LoopEvent.ON_TRIAL: '{version} is on trial',
    LoopEvent.PROMOTED: '{version} has all new episodes, and is watched',
    LoopEvent.WATCHED: '{version} has passed its watch, and becomes the champion',
    LoopEvent.ROLLED_BACK: 'no rollout; {version} was rolled back',
    LoopEvent.ROUTER_UNKNOWN: 'the router is not known: {text}',
    LoopEvent.CANDIDATE_LOST: '{version} was on trial, and slot b serves it no more: it starts '
    'again',
    LoopEvent.FINISHED: '{version} is the champion, no rollout',
}
# event -> its count in the line of versions, in this order
COUNTED = {
    LoopEvent.NEW_VERSION: 'trained',
    LoopEvent.GATE_ADMITTED: 'admitted by the gate',
    LoopEvent.GATE_REFUSED: 'refused',
    LoopEvent.GATE_HELD: 'held',
    LoopEvent.ROLLOUT_STARTED: 'started',
    LoopEvent.PROMOTED: 'promoted',
    LoopEvent.ROLLED_BACK: 'rolled back',
    LoopEvent.FINISHED: 'made champion',
}
# before these it was promoted, maybe while the loop was away
PROMOTED_BEFORE = (LoopEvent.WATCHED, LoopEvent.FINISHED)
NO_CHAMPION = 'not known'


@dataclass(slots=True)
class Summary:
    """
    The state at the end of some entries. `champions` are the first and all later ones, `last` the
    newest event of each version that a person may have to act on, by digest.
    """

    counts: dict[str, set[str]] = field(default_factory=dict)
    champions: list[str] = field(default_factory=list)
    state: JournalEntry | None = None
    last: dict[str, JournalEntry] = field(default_factory=dict)
    failures: int = 0
    starts: int = 0
    kills: int = 0
    steps_back: int = 0


def entry_text(event: str, version: str, text: str) -> str:
    """Return an entry in words; a text of the canary begins with its state."""
    words = event.replace('_', ' ')
    return ': '.join(filter(None, (f'{words} {version}'.strip(), text.removeprefix(f'{words}: '))))


def entry_line(entry: JournalEntry) -> str:
    """Return an entry with its local time, as `rollout history` prints it."""
    try:
        at = format_local(datetime.fromisoformat(entry.at).timestamp(), day=True, to='seconds')
    except ValueError:
        at = entry.at
    return f'{at}  {entry_text(entry.event, entry.version, entry.text)}'


def summarize(entries: Iterable[JournalEntry], since: str) -> Summary:
    """Return the summary of the entries since a time; those before give the champion."""
    found, before = Summary(), None
    is_running = False
    for entry in entries:
        is_recent = entry.at >= since
        if entry.event == LoopEvent.CHAMPION:
            found.champions = [*found.champions, entry.version] if is_recent else [entry.version]
        if entry.event in STATES:
            found.state = entry
        if is_recent:
            _count(found, entry)
            found.steps_back += before is not None and entry.at < before.at
            found.kills += entry.event == LoopEvent.LOOP_STARTED and is_running
        is_running = entry.event != LoopEvent.LOOP_ENDED
        before = entry
        _keep_last(found, entry)
    return found


def _count(found: Summary, entry: JournalEntry) -> None:
    found.starts += entry.event == LoopEvent.LOOP_STARTED
    found.failures += entry.event.endswith(FAILED)
    for event in (entry.event, *([LoopEvent.PROMOTED] if entry.event in PROMOTED_BEFORE else [])):
        if event in COUNTED:
            found.counts.setdefault(event, set()).add(digest_of(entry.version))


def _keep_last(found: Summary, entry: JournalEntry) -> None:
    """Keep what a version, or a step for it, ended with."""
    if entry.event in (LoopEvent.CHAMPION, LoopEvent.FINISHED):
        # versions that were trained from the one before are stale
        found.last.clear()
    elif entry.event == LoopEvent.LOOP_STARTED:
        return
    elif entry.version and (entry.event not in STATES or entry.event == LoopEvent.ROLLED_BACK):
        # a step that failed for this version, and then did not
        found.last[digest_of(entry.version)] = entry


def summary_lines(found: Summary) -> list[str]:
    """Return a summary in words."""
    counts = [f'{len(found.counts.get(event, ()))} {what}' for event, what in COUNTED.items()]
    lines = [f'versions: {", ".join(counts)}']
    first, *later = found.champions or [NO_CHAMPION]
    now = later[-1] if later else first
    lines.append(f'champion: {now}' + (f'; before: {first}' if now != first else ', unchanged'))
    if found.state:
        text = STATES[found.state.event].format(
            version=found.state.version, text=found.state.text or 'no reason given'
        )
        lines.append(f'now: {text}')
    lines += _process_lines(found)
    waiting = waiting_lines(found)
    lines.append('for a person:' if waiting else 'for a person: nothing')
    return [*lines, *(f'  {line}' for line in waiting)]


def _process_lines(found: Summary) -> list[str]:
    lines = []
    if found.kills:
        lines.append(
            f'the loop started {found.starts} times, {found.kills} times after an end that it '
            'did not record: it was killed, or the machine was'
        )
    if found.failures:
        lines.append(f'{found.failures} steps failed, and were taken again')
    if found.steps_back:
        lines.append(
            f'the clock of this machine was set back {found.steps_back} times: times above '
            'are not in order, the lines are'
        )
    return lines


def waiting_lines(found: Summary) -> list[str]:
    """Return what waits for a person, each with what to type."""
    lines = [line for entry in found.last.values() if (line := _waiting_line(entry))]
    if found.state and found.state.event == LoopEvent.ROUTER_UNKNOWN:
        lines.append('the router does not reply; see `lerobot-serve doctor`')
    return lines


def _waiting_line(entry: JournalEntry) -> str:
    version = entry.version
    if entry.event == LoopEvent.GATE_HELD:
        return (
            f'{version} is held by its gate, and may start with your reason: `lerobot-serve gate '
            f'BAG... --candidate STORE/{version} --parent DIR --records FOLDER --override GATE '
            '--reason TEXT`'
        )
    if entry.event == LoopEvent.GATE_REFUSED:
        return (
            f'{version} is refused by its gate. Look at the episodes of its round; what it was '
            f'trained on: `lerobot-serve versions show {version}`'
        )
    if entry.event.endswith(FAILED):
        step = entry.event.removesuffix(FAILED).replace('_', ' ')
        return f'{step} of {version} failed last: {entry.text}'
    return ''
