"""Requests and answers from a bag or an incident, in the order of the answers. Any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lerobot_serve.bags.message import CHUNK
from lerobot_serve.bags.pairs import is_no_second_draw, Pairs
from lerobot_serve.bags.reader import Bag, is_bag
from lerobot_serve.trace import incidents
from lerobot_serve.wire.chunk import peek_answer
from lerobot_serve.wire.errors import Malformed


class ReplayError(ValueError):
    """What cannot be replayed; says why and what to do."""


class Recorded(NamedTuple):
    """A request and its answer as CDR bytes, and what else is known of them, often nothing."""

    request: bytes
    answer: bytes
    info: dict[str, Any]


class BagSource:
    """`notes` says what is missing, once `read` was gone through. Raises BagError."""

    def __init__(self, path: Path) -> None:
        self._bag = Bag(path)
        self._pairs = Pairs()

    def policies(self) -> Counter[str]:
        """Return how many answers each policy gave, by fingerprint."""
        messages = self._bag.read()
        chunks = (m.data for m in messages if m.type == CHUNK and is_no_second_draw(m.topic))
        return count_policies(chunks)

    def read(self) -> Iterator[Recorded]:
        self._pairs = Pairs()
        for pair in self._pairs.join(self._bag.read()):
            yield Recorded(pair.request, pair.answer, {})

    @property
    def unanswered(self) -> int:
        return self._pairs.unanswered

    @property
    def notes(self) -> list[str]:
        counted = (
            (self._pairs.orphans, 'answers have no request in the bag'),
            (self._pairs.malformed, 'messages cannot be read'),
        )
        return [*self._bag.damage, *(f'{count} {what}' for count, what in counted if count)]


class IncidentSource:
    """The same of a file that a policy server captured. Raises IncidentError."""

    def __init__(self, path: Path) -> None:
        pairs = incidents.read(path)
        self._answered = [Recorded(*pair) for pair in pairs if pair.answer]
        self.unanswered = len(pairs) - len(self._answered)
        self.notes: list[str] = []

    def policies(self) -> Counter[str]:
        return count_policies(recorded.answer for recorded in self._answered)

    def read(self) -> Iterator[Recorded]:
        yield from self._answered


Source = BagSource | IncidentSource


def open_source(path: Path) -> Source:
    """Return what was recorded. Raises ReplayError, BagError and IncidentError."""
    if not path.exists():
        raise ReplayError(f'there is no {path}; name a bag or an incident')
    if path.suffix == '.jsonl' or (path.is_dir() and any(path.rglob('*.jsonl'))):
        raise ReplayError(
            f'{path} is a trace: it tells of requests and answers, but holds neither the states '
            'that were sent nor the chunks that came (with trace_images: full, the pictures '
            'alone), so nothing can be asked again; record a bag (lerobot-serve record), or let '
            'the server capture incidents'
        )
    if path.suffix == incidents.SUFFIX:
        return IncidentSource(path)
    if not is_bag(path):
        raise ReplayError(f'{path} is neither a bag nor an incident; name one of these')
    return BagSource(path)


def count_policies(answers: Iterator[bytes]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for raw in answers:
        try:
            counts[peek_answer(raw).policy] += 1
        except Malformed:
            # counted where it is read
            continue
    return counts
