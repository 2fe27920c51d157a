"""
What is remembered of an episode: where it goes and why; and the same as a line of a file.

A first line says what the file is, then there is one line of JSON for each decision. Plain; any
thread.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache, partial
import json
from pathlib import Path
from typing import Any

from lerobot_serve.router.split import bucket, BUCKETS, SLOTS

FORMAT, VERSION = 'lerobot_serve placements', 1
# far longer than any that is written
LINE_LIMIT = 16384
SHARED_LIMIT = 16384

_encode = json.JSONEncoder(ensure_ascii=False, separators=(',', ':')).encode


class NotOurs(Exception):
    """The file is none of this version; says what it is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """
    Where an episode goes, and why; the reason is empty when it is as the split says.

    `split_percent` is None in a router of one slot. `moved`: it had to leave another slot.
    """

    bucket: int
    slot: str
    split_percent: int | None
    moved: bool
    reason: str


@lru_cache(SHARED_LIMIT)
def decision(
    key_bucket: int, slot: str, split_percent: int | None, moved: bool, reason: str
) -> Decision:
    """Return one object for all that were decided alike: millions of episodes share hundreds."""
    return Decision(key_bucket, slot, split_percent, moved, reason)


def head() -> bytes:
    """Return the first line."""
    return to_bytes({'format': FORMAT, 'version': VERSION})


def to_line(episode_id: str, decided: Decision) -> bytes:
    """Return the line that says where an episode goes."""
    content = {
        'episode': episode_id,
        'bucket': decided.bucket,
        'slot': decided.slot,
        'split_percent': decided.split_percent,
    }
    if decided.moved:
        content['moved'] = True
    if decided.reason:
        content['reason'] = decided.reason
    return to_bytes(content)


def to_bytes(content: dict[str, Any]) -> bytes:
    # a text that has no UTF-8 is no reason to fail
    return _encode(content).encode(errors='replace') + b'\n'


def from_line(line: bytes) -> tuple[str, Decision]:
    """Return episode and decision. Raises ValueError for a line that makes no sense."""
    content = from_bytes(line)
    episode_id, slot, split = (content.get(n) for n in ('episode', 'slot', 'split_percent'))
    moved, reason = content.get('moved', False), content.get('reason', '')
    if not (isinstance(episode_id, str) and episode_id and slot in SLOTS):
        raise ValueError('no episode or no slot')
    if split is not None and not (type(split) is int and 0 <= split <= BUCKETS):
        raise ValueError('no split')
    if not (isinstance(moved, bool) and isinstance(reason, str)):
        raise ValueError('no reason')
    number = bucket(episode_id)
    # finds nearly every name that was damaged
    if content.get('bucket') != number:
        raise ValueError('not the bucket of this episode')
    return episode_id, decision(number, slot, split, moved, reason)


def from_bytes(line: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    try:
        content = json.loads(line.decode())
    except RecursionError:
        raise ValueError('too deep') from None
    if not isinstance(content, dict):
        raise ValueError('no object')
    return content


def read(path: Path, capacity: int) -> tuple[OrderedDict[str, Decision], str]:
    """
    Return the newest `capacity` decisions, oldest first, and in words what was damaged.

    Raises NotOurs and OSError.
    """
    placed: OrderedDict[str, Decision] = OrderedDict()
    skipped, is_torn = 0, False
    with open(path, 'rb') as file:
        is_ours = is_head(file.readline(LINE_LIMIT))
        if not is_ours:
            file.seek(0)
        for line in iter(partial(file.readline, LINE_LIMIT), b''):
            try:
                episode_id, decided = from_line(line)
            except ValueError:
                skipped += 1
                is_torn = not line.endswith(b'\n')
                continue
            placed[episode_id] = decided
            placed.move_to_end(episode_id)
            if len(placed) > capacity:
                placed.popitem(last=False)
    if skipped and not (is_ours or placed):
        raise NotOurs('is no file of placements')
    return placed, describe(skipped - is_torn, is_torn)


def is_head(line: bytes) -> bool:
    """Return whether a file of ours begins so. Raises NotOurs for one of another version."""
    try:
        content = from_bytes(line)
    except ValueError:
        return False
    if content.get('format') != FORMAT:
        return False
    if content.get('version') != VERSION:
        raise NotOurs(f'is of version {content.get("version")!r} and not of {VERSION}')
    return True


def describe(skipped: int, is_torn: bool) -> str:
    """Return what was left out, in words; empty for nothing."""
    parts = [f'lines that make no sense were skipped: {skipped}'] if skipped else []
    return ', '.join(parts + ['its torn last line was cut off'] * is_torn)
