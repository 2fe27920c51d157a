# SPDX-License-Identifier: Apache-2.0
"""What the trial of a version has shown at its promotion. Pure; any thread."""

from __future__ import annotations

from dataclasses import dataclass
import math

from lerobot_serve.tools.operate.fleet_state import CanaryView

# what two rounds must gain, and the evidence of each promotion
GAIN = 0.2
EVIDENCE_LOG10 = math.log10(20.0)


@dataclass(frozen=True, order=True, slots=True)
class Trial:
    """
    Outcomes of champion and candidate, and the evidence that the candidate is not worse, as a
    decimal logarithm. Ordered by evidence: after a promotion the counts begin again.
    """

    evidence_log10: float = 0.0
    candidate_episodes: int = 0
    candidate_successes: int = 0
    champion_episodes: int = 0
    champion_successes: int = 0

    @property
    def odds(self) -> float:
        """The evidence as a number to one."""
        return math.pow(10.0, self.evidence_log10)

    @property
    def champion_rate(self) -> float:
        return self.champion_successes / max(1, self.champion_episodes)

    @property
    def candidate_rate(self) -> float:
        return self.candidate_successes / max(1, self.candidate_episodes)


def trial_of(canary: CanaryView) -> Trial:
    """Return what the state of a canary shows."""
    return Trial(
        canary.evidence_not_worse,
        canary.candidate_successes + canary.candidate_failures,
        canary.candidate_successes,
        canary.champion_successes + canary.champion_failures,
        canary.champion_successes,
    )
