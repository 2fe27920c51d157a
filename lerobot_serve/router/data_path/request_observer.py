# SPDX-License-Identifier: Apache-2.0
"""Observers of the requests of the data path: the trace, the shadow, the decision publisher."""

from __future__ import annotations

from collections.abc import Iterable

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.data_path.chunk import ReplySummary
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions.client_sessions import ClientSession


class RequestObserver:
    """
    Ignores all events; a subclass overrides the methods it needs. Methods must not block. Called
    by any thread of the data path, without RoutingTable.lock, after the message was sent.
    """

    def on_requested(
        self, session: ClientSession, raw: Raw, header: Header, executed: ExecutionReport | None
    ) -> None:
        """Observe the arrival of a request, with its report of executed actions."""

    def on_refused(
        self, session: ClientSession, header: Header, executed: ExecutionReport | None
    ) -> None:
        """Observe a request that a quota refuses; only its report counts."""

    def on_placed(
        self, request: InFlightRequest, placement: Placement, server: str, policy: str
    ) -> None:
        """Observe the placement or the move of an episode, and its server."""

    def on_replied(
        self, request: InFlightRequest, server: str, raw: bytes, reply: ReplySummary
    ) -> None:
        """Observe a reply of a server, with or without actions, that was relayed."""

    def on_failed(self, request: InFlightRequest, status: Status, text: str) -> None:
        """Observe a reply without actions by the router itself."""

    def on_dropped(self, request: InFlightRequest, reason: str) -> None:
        """Observe a request that ended without a reply."""


class RequestObservers(RequestObserver):
    """Forwards each event to several observers, in order."""

    def __init__(self, observers: Iterable[RequestObserver]) -> None:
        self._observers = tuple(observers)

    def on_requested(
        self, session: ClientSession, raw: Raw, header: Header, executed: ExecutionReport | None
    ) -> None:
        for each in self._observers:
            each.on_requested(session, raw, header, executed)

    def on_refused(
        self, session: ClientSession, header: Header, executed: ExecutionReport | None
    ) -> None:
        for each in self._observers:
            each.on_refused(session, header, executed)

    def on_placed(
        self, request: InFlightRequest, placement: Placement, server: str, policy: str
    ) -> None:
        for each in self._observers:
            each.on_placed(request, placement, server, policy)

    def on_replied(
        self, request: InFlightRequest, server: str, raw: bytes, reply: ReplySummary
    ) -> None:
        for each in self._observers:
            each.on_replied(request, server, raw, reply)

    def on_failed(self, request: InFlightRequest, status: Status, text: str) -> None:
        for each in self._observers:
            each.on_failed(request, status, text)

    def on_dropped(self, request: InFlightRequest, reason: str) -> None:
        for each in self._observers:
            each.on_dropped(request, reason)


def report_dropped(
    request: InFlightRequest, reason: str, drops: DropCounters, observer: RequestObserver
) -> None:
    """Count and report a request that ended without a reply."""
    drops.add(reason)
    observer.on_dropped(request, reason)
