# SPDX-License-Identifier: Apache-2.0
"""
Whether a part of the round trip grew: the median without a stall, else in the requests that the
robot was waiting for. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.tools.diagnosis.causes.finding import CauseFinding
from lerobot_serve.tools.diagnosis.causes.request_spans import flights
from lerobot_serve.tools.diagnosis.joined_request import JoinedRequest
from lerobot_serve.tools.diagnosis.median_shift import has_grown
from lerobot_serve.tools.diagnosis.window_facts import WindowFacts

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
