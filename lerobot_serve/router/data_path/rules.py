"""What the dispatcher goes by, worked out from the parameters; replaced as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.router.placement.split import SINGLE_SLOT


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """
    split_percent  share of new episodes to slot a
    timeout_ns     an answer that is later counts as a failure, and another replica is asked
    hedge_factor   a second replica is asked after so many times the recent p95; 0 for never
    hedge_percent  at most so many of the requests are asked twice
    spare          slots that take over though their share is 0 or their policy on trial
    """

    split_percent: int
    timeout_ns: int
    hedge_factor: float
    hedge_percent: float
    spare: frozenset[str] = frozenset()

    def share_percent(self, slot_name: str) -> int:
        """Return the share of new episodes that is meant for a slot; the only one has all."""
        if slot_name == SINGLE_SLOT:
            return 100
        return self.split_percent if slot_name == 'a' else 100 - self.split_percent


@dataclass(frozen=True, slots=True)
class ShadowRules:
    """
    percent         share of the requests that the shadow sees
    spread_percent  share of these for which the policy that drives is asked twice
    """

    percent: float
    spread_percent: float


# below this the second request would nearly always be sent in vain
HEDGE_FLOOR_NS = 5_000_000
# so many may be asked twice at once, however few requests there were before
HEDGE_BURST = 16.0


class HedgeBudget:
    """Grows by a share of a request with each request, shrinks by one with each second try."""

    def __init__(self) -> None:
        self._left = HEDGE_BURST

    def earn(self, percent: float) -> None:
        self._left = min(HEDGE_BURST, self._left + percent / 100)

    def spend(self) -> bool:
        """Return whether there was enough."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
