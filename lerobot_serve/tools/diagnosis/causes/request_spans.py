# SPDX-License-Identifier: Apache-2.0
"""
Requests by what became of them, and when each kept the robot without actions. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable

from lerobot_serve.tools.diagnosis.causes.finding import Span
from lerobot_serve.tools.diagnosis.joined_request import JoinedRequest
from lerobot_serve.tools.diagnosis.window_facts import GRACE_S, WindowFacts

# a session that is lost within this time after a cause is lost by it
AFTERMATH_S = 1.0


def reply_status(request: JoinedRequest) -> str:
    """Return the status recorded by the edge, else by the server, then the router."""
    recorded = [request.edge_record] if request.edge_record and not request.has_no_reply else []
    recorded += [each.record for each in (*request.server_records, *request.router_records)]
    return recorded[0].status if recorded else ''


def replica_of(request: JoinedRequest) -> str:
    return next((each.record.server for each in request.router_records), '')


def lost_requests(facts: WindowFacts) -> list[JoinedRequest]:
    """Return those without a reply of a server that kept the robot, or lost its session."""
    lost = (request for request in facts.requests.values() if request.is_lost)
    return [r for r in lost if facts.of_window(with_aftermath(facts, influence(facts, [r])))]


def flights(facts: WindowFacts, requests: list[JoinedRequest]) -> tuple[Span, ...]:
    """Return when requests were in flight; the first command of a reply comes a moment later."""
    return tuple((facts.sent_s(request), request.end_s + GRACE_S) for request in requests)


def influence(facts: WindowFacts, requests: Iterable[JoinedRequest]) -> tuple[Span, ...]:
    """Return the time that requests without actions took, until the next one was sent."""
    return tuple((facts.sent_s(each), facts.until_s[each.key]) for each in requests)


def with_aftermath(facts: WindowFacts, spans: Iterable[Span]) -> tuple[Span, ...]:
    """Extend spans by the time without a session that began with them."""
    return tuple(
        (
            begin_s,
            max(
                [end_s]
                + [
                    until_s
                    for lost_s, until_s in facts.lost_spans
                    if begin_s <= lost_s <= end_s + AFTERMATH_S
                ]
            ),
        )
        for begin_s, end_s in spans
    )
