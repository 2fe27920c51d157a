# SPDX-License-Identifier: Apache-2.0
"""
When the simulated person takes over the robot and hands it back. Pure; one thread at a time.

The person lets the policy try, and corrects it where its hand stops beside the target.
"""

from __future__ import annotations

from enum import Enum
import math

# a hand that moves less than this in this time has stopped
STOPPED_M, STOPPED_S = 0.005, 0.5
# a policy needs a while for its first action of an attempt
PATIENCE_S = 1.5
# a request without an effect is repeated
REPEAT_S = 1.0


class Request(Enum):
    """A service of the edge controller."""

    TAKE_OVER = 'take_over'
    HAND_BACK = 'hand_back'


# (the person commands since an own takeover, may correct this attempt, the hand stopped beside)
REQUESTS: dict[tuple[bool, bool, bool], Request | None] = {
    (False, False, False): None,
    (False, False, True): None,
    (False, True, False): None,
    (False, True, True): Request.TAKE_OVER,
    (True, False, False): Request.HAND_BACK,
    (True, False, True): Request.HAND_BACK,
    (True, True, False): None,
    (True, True, True): None,
}


class CorrectingPerson:
    """Times are seconds of a clock that does not step."""

    def __init__(self) -> None:
        self._began_s = self._still_since_s = -math.inf
        self._still_at = (math.inf, math.inf)
        self._has_moved = False
        self._requested_s = -math.inf
        # an operator's takeover is not handed back
        self._took_over = self._commanded = False
        # the correction of an attempt ends with it
        self._corrected_attempt = False

    def begin_attempt(self, now_s: float, hand: tuple[float, float]) -> None:
        """Watch the next attempt, whose correction is one of its own."""
        self._began_s = self._still_since_s = now_s
        self._still_at, self._has_moved = hand, False
        self._corrected_attempt = False
        self._requested_s = -math.inf

    def request(
        self,
        now_s: float,
        hand: tuple[float, float],
        *,
        is_reached: bool,
        person_commands: bool,
        corrects: bool,
    ) -> Request | None:
        """Return the service to call now, None for none."""
        if math.dist(hand, self._still_at) > STOPPED_M:
            self._still_at, self._still_since_s, self._has_moved = hand, now_s, True
        is_stopped = now_s - self._still_since_s >= STOPPED_S and (
            self._has_moved or now_s - self._began_s >= PATIENCE_S
        )
        if self._commanded and not person_commands:
            self._took_over = False
        self._commanded = person_commands
        owns = self._took_over and person_commands
        may = corrects and (self._corrected_attempt if owns else not person_commands)
        found = REQUESTS[owns, may, is_stopped and not is_reached]
        if found is None or now_s - self._requested_s < REPEAT_S:
            return None
        self._requested_s = now_s
        if found is Request.TAKE_OVER:
            self._took_over = self._corrected_attempt = True
        return found
