# SPDX-License-Identifier: Apache-2.0
"""
Joins the requests and replies of a bag by client, session and number.

A bag may contain a request several times, on the topics of a router and of its servers, and
several replies to it, of a policy and its shadow. The first reply of each policy counts. A
recorder does not preserve order between topics: a request may follow its reply. One thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lerobot_serve.tools.bags.message import BagMessage, CHUNK, OBSERVATION
from lerobot_serve.wire.chunk import read_reply_summary
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.header import read_envelope

# open requests kept for each client: one is in flight, and replies may be late
REQUESTS_KEPT = 32
# topics of a router: replies of its servers, and second draws, which no robot executes
REPLY_TOPICS, SECOND_DRAW_TOPIC = '/replies/', '/replies/second_draw'

Key = tuple[int, int]


class RequestReply(NamedTuple):
    """A request and its reply as CDR bytes, and the reception time of each."""

    request: bytes
    answer: bytes
    request_ns: int
    reply_ns: int


def is_of_robot(topic: str) -> bool:
    """Return whether the replies on a topic are for a robot or another client."""
    return REPLY_TOPICS not in topic


def is_no_second_draw(topic: str) -> bool:
    return not topic.endswith(SECOND_DRAW_TOPIC)


@dataclass(slots=True)
class _OpenRequest:
    request: BagMessage | None = None
    waiting: list[BagMessage] = field(default_factory=list)
    answered_by: set[str] = field(default_factory=set)


class RequestPairer:
    """
    Joins requests and replies. Counts `unanswered` requests, `orphans` (replies whose request is
    not in the bag) and `malformed` messages.
    """

    def __init__(self, accepts_topic: Callable[[str], bool] = is_no_second_draw) -> None:
        """Only replies on topics that `accepts_topic` accepts count."""
        self._accepts_topic = accepts_topic
        self._flights: dict[str, OrderedDict[Key, _OpenRequest]] = {}
        self.unanswered = self.orphans = self.malformed = 0

    def join(self, messages: Iterable[BagMessage]) -> Iterator[RequestReply]:
        """Yield the pairs in the order of their completion."""
        for message in messages:
            yield from self.add(message)
        self.finish()

    def add(self, message: BagMessage) -> list[RequestReply]:
        """Return the pairs that a message of any topic completes."""
        try:
            if message.type == OBSERVATION:
                return self._on_request(message)
            if message.type == CHUNK and self._accepts_topic(message.topic):
                return self._on_reply(message)
        except Malformed:
            self.malformed += 1
        return []

    def finish(self) -> None:
        """Count the open requests and replies as unmatched."""
        for flights in self._flights.values():
            for flight in flights.values():
                self._count(flight)
        self._flights = {}

    def _on_request(self, message: BagMessage) -> list[RequestReply]:
        header, client_id, _ = read_envelope(message.data)
        flight = self._flight(client_id, (header.session_epoch, header.seq))
        if flight.request is None:
            flight.request = message
        waiting, flight.waiting = flight.waiting, []
        return [_request_reply(flight.request, answer) for answer in waiting]

    def _on_reply(self, message: BagMessage) -> list[RequestReply]:
        answer = read_reply_summary(message.data)
        header = answer.start.header
        flight = self._flight(answer.start.client_id, (header.session_epoch, header.seq))
        if answer.policy in flight.answered_by:
            return []
        flight.answered_by.add(answer.policy)
        if flight.request is None:
            flight.waiting.append(message)
            return []
        return [_request_reply(flight.request, message)]

    def _flight(self, client_id: str, key: Key) -> _OpenRequest:
        flights = self._flights.setdefault(client_id, OrderedDict())
        if key not in flights:
            flights[key] = _OpenRequest()
            if len(flights) > REQUESTS_KEPT:
                self._count(flights.popitem(last=False)[1])
        return flights[key]

    def _count(self, flight: _OpenRequest) -> None:
        self.orphans += len(flight.waiting)
        self.unanswered += not flight.answered_by


def _request_reply(request: BagMessage, answer: BagMessage) -> RequestReply:
    return RequestReply(request.data, answer.data, request.stamp_ns, answer.stamp_ns)
