# SPDX-License-Identifier: Apache-2.0
"""Observers of the requests of the data path: the trace, the shadow, the decision publisher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.data_path.chunk import ReplySummary
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.monitoring.drop_counters import DropCounters
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions.client_sessions import ClientSession

P = ParamSpec('P')


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
    """Forwards each event to several observers, in order; which ones is known at its start."""

    def __init__(self, observers: Iterable[RequestObserver]) -> None:
        known = tuple(observers)
        for event in (name for name in vars(RequestObserver) if name.startswith('on_')):
            setattr(self, event, _all_of([getattr(each, event) for each in known]))


def _all_of(calls: Sequence[Callable[P, None]]) -> Callable[P, None]:
    """Return a function that makes several calls with its arguments."""

    def call(*event: P.args, **named: P.kwargs) -> None:
        for each in calls:
            each(*event, **named)

    return call


def report_dropped(
    request: InFlightRequest, reason: str, drops: DropCounters, observer: RequestObserver
) -> None:
    """Count and report a request that ended without a reply."""
    drops.add(reason)
    observer.on_dropped(request, reason)
