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

from lerobot_serve.contract.data_path.chunk import read_reply_summary
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.tools.bags.message import BagMessage, CHUNK, OBSERVATION

# open requests kept for each client: one is in flight, and replies may be late
REQUESTS_KEPT = 32
# topics of a router: replies of its servers, and second draws, which no robot executes
REPLY_TOPICS, SECOND_DRAW_TOPIC = '/replies/', '/replies/second_draw'

Key = tuple[int, int]


class RequestReply(NamedTuple):
    """A request and its reply as CDR bytes, and the reception time of each."""

    request: bytes
    reply: bytes
    request_ns: int
    reply_ns: int


def is_robot_reply_topic(topic: str) -> bool:
    """Return whether the replies on a topic are for a robot or another client."""
    return REPLY_TOPICS not in topic


def is_no_second_draw(topic: str) -> bool:
    return not topic.endswith(SECOND_DRAW_TOPIC)


@dataclass(slots=True)
class _OpenRequest:
    request: BagMessage | None = None
    waiting: list[BagMessage] = field(default_factory=list)
    replied_by: set[str] = field(default_factory=set)


class RequestPairer:
    """
    Joins requests and replies. Counts requests `without_reply`, replies `without_request` in the
    bag, and `malformed` messages.
    """

    def __init__(self, accepts_topic: Callable[[str], bool] = is_no_second_draw) -> None:
        """Only replies on topics that `accepts_topic` accepts count."""
        self._accepts_topic = accepts_topic
        self._open_requests: dict[str, OrderedDict[Key, _OpenRequest]] = {}
        self.without_reply = self.without_request = self.malformed = 0

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
        for open_requests in self._open_requests.values():
            for open_request in open_requests.values():
                self._count(open_request)
        self._open_requests = {}

    def _on_request(self, message: BagMessage) -> list[RequestReply]:
        header, client_id, _ = read_envelope(message.data)
        open_request = self._open_request(client_id, (header.session_epoch, header.seq))
        if open_request.request is None:
            open_request.request = message
        waiting, open_request.waiting = open_request.waiting, []
        return [_request_reply(open_request.request, reply) for reply in waiting]

    def _on_reply(self, message: BagMessage) -> list[RequestReply]:
        reply = read_reply_summary(message.data)
        header = reply.start.header
        open_request = self._open_request(
            reply.start.client_id, (header.session_epoch, header.seq)
        )
        if reply.policy in open_request.replied_by:
            return []
        open_request.replied_by.add(reply.policy)
        if open_request.request is None:
            open_request.waiting.append(message)
            return []
        return [_request_reply(open_request.request, message)]

    def _open_request(self, client_id: str, key: Key) -> _OpenRequest:
        open_requests = self._open_requests.setdefault(client_id, OrderedDict())
        if key not in open_requests:
            open_requests[key] = _OpenRequest()
            if len(open_requests) > REQUESTS_KEPT:
                self._count(open_requests.popitem(last=False)[1])
        return open_requests[key]

    def _count(self, open_request: _OpenRequest) -> None:
        self.without_request += len(open_request.waiting)
        self.without_reply += not open_request.replied_by


def _request_reply(request: BagMessage, reply: BagMessage) -> RequestReply:
    return RequestReply(request.data, reply.data, request.stamp_ns, reply.stamp_ns)
