# SPDX-License-Identifier: Apache-2.0
"""
Requests by what became of them, when each kept the robot without actions, and whether a part of
the round trip grew: the median without a stall, else in the requests that the robot was waiting
for. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lerobot_serve.tools.diagnosis.finding import CauseFinding, Span
from lerobot_serve.tools.diagnosis.timeline import JoinedRequest
from lerobot_serve.tools.diagnosis.window_facts import GRACE_S, has_grown, WindowFacts

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


# parts of a round trip that a cause can lengthen
PARTS = ('queue_wait_ms', 'processing_ms', 'inference_ms', 'network_ms')


def growth_finding(facts: WindowFacts, name: str, part: str) -> CauseFinding:
    """
    Evaluate whether a part of the round trip grew, and in a stall: more than the other parts of
    the requests that it was waiting for.
    """
    value = part_of(part)
    shift = facts.shift_of(value)
    words = f'{name} {shift.text}'
    if not shift.is_known:
        return CauseFinding(None, f'too few requests: {words}')
    if not facts.stalls:
        # of one request nothing follows
        return CauseFinding(shift.has_grown and shift.during_n > 1, words)
    usual = {each: facts.shift_of(part_of(each)).before_p50 for each in PARTS}
    grown = [request for request in facts.during if longest_growth(request, usual) == part]
    return CauseFinding(bool(grown), words, flights(facts, grown))


def part_of(name: str) -> Callable[[JoinedRequest], float | None]:
    def value(request: JoinedRequest) -> float | None:
        found: float | None = getattr(request, name)
        return found

    return value


def longest_growth(request: JoinedRequest, usual: dict[str, float | None]) -> str:
    """Return the part of a request that is further above its usual value than all others."""
    growth = {
        name: value - before
        for name, before in usual.items()
        if before is not None
        and (value := part_of(name)(request)) is not None
        and has_grown(before, value)
    }
    return max(growth, key=lambda name: growth[name], default='')
