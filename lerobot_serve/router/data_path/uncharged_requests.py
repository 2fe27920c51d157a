# SPDX-License-Identifier: Apache-2.0
"""
The requests that were sent to replicas and whose inference is not charged yet.

A link may deliver a reply twice, and a reply may come long after its request was replaced or timed
out: pending replies say neither. No ROS; called under RoutingTable.lock.
"""

from __future__ import annotations

from collections import deque, OrderedDict
from typing import NamedTuple

from lerobot_serve.router.data_path.in_flight import RequestPurpose

# probes and hedges are the doing of the router
CHARGED_PURPOSES = (RequestPurpose.LIVE,)
# of one client, which need not wait for replies; more are never under way at a server
REQUESTS_LIMIT = 64
# those that sent last: a request whose reply was lost stays until then
CLIENTS_LIMIT = 4096


class SentRequest(NamedTuple):
    """One copy of a request at a replica."""

    server: str
    session_epoch: int
    seq: int


class UnchargedRequests:
    """
    Kept by client, not by session: who closes a session at once is charged all the same. Of
    requests with one number, which a faulty client may send, each is charged.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[str, deque[SentRequest]] = OrderedDict()

    def add(self, client_id: str, sent: SentRequest) -> None:
        """Remember a request; the oldest one of its client, or client, gives way."""
        requests = self._sent.setdefault(client_id, deque(maxlen=REQUESTS_LIMIT))
        requests.append(sent)
        self._sent.move_to_end(client_id)
        if len(self._sent) > CLIENTS_LIMIT:
            self._sent.popitem(last=False)

    def take(self, client_id: str, sent: SentRequest) -> bool:
        """Return whether the reply to a request is to be charged; it is only once."""
        requests = self._sent.get(client_id)
        if requests is None or sent not in requests:
            return False
        requests.remove(sent)
        if not requests:
            del self._sent[client_id]
        return True
