# SPDX-License-Identifier: Apache-2.0
"""The state of a learner as plain data, with numbers that are safe to print. Pure; any thread."""

from __future__ import annotations

from dataclasses import dataclass
import math

from lerobot_serve.learner.rounds.states import Phase, RUNNING

LEARNER_PHASES = tuple(phase.name for phase in Phase)
RUNNING_PHASES = tuple(phase.name for phase in RUNNING)
# of a learner that is found and whose state does not arrive
NO_STATE = 'UNKNOWN'
# a longer time left is no estimate [s]
REMAINING_LIMIT_S = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class LearnerView:
    """
    A learner; `phase` is one of LEARNER_PHASES or NO_STATE. A number that is not known is None.
    `silent_s` is how long a silent one has sent no state; None while it sends. Its other values
    are the last ones.
    """

    node: str
    phase: str = NO_STATE
    # why it waits, what it does, or why the last round failed
    text: str = ''
    # the running or last one; 0 before the first
    round: int = 0
    # what the running or next round builds on, and the last version that was published
    parent: str = ''
    latest: str = ''
    episodes: int = 0
    episodes_new: int = 0
    episodes_wanted: int = 0
    # of the running phase
    progress: float | None = None
    loss: float | None = None
    has_diverged: bool = False
    remaining_s: float | None = None
    # reason, count
    dropped: tuple[tuple[str, int], ...] = ()
    silent_s: float | None = None

    @property
    def is_silent(self) -> bool:
        return self.silent_s is not None

    @property
    def is_running(self) -> bool:
        """Whether a round runs, by the newest state."""
        return self.phase in RUNNING_PHASES and not self.is_silent


def known_share(value: float) -> float | None:
    """Return a share within [0, 1]; None for NaN and infinity."""
    return min(1.0, max(0.0, value)) if math.isfinite(value) else None


def known_loss(value: float) -> float | None:
    """Return a loss; None for NaN, which is not known, and infinity, which is no number."""
    return value if math.isfinite(value) else None


def known_remaining_s(value: float) -> float | None:
    """Return a time left; None for what is no estimate."""
    return value if 0 <= value <= REMAINING_LIMIT_S else None
