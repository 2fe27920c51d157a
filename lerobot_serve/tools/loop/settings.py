# SPDX-License-Identifier: Apache-2.0
"""The settings of the loop, by command line and by fleet file. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lerobot_serve.tools.gate.limits import GateLimits

PLAN, PERIOD_S, GATE_RECORDINGS = '25,50,100', 5.0, 60
# a bag of the strategies episodic and dagger has one episode
LEAST_RECORDINGS = GateLimits().minimum_episodes
# of a call to the router, and of one step; loading a large policy on several servers takes long
CALL_LIMIT_S, GATE_LIMIT_S, ROLLOUT_LIMIT_S = 5.0, 7200.0, 3600.0
# first and longest time until the same step may be taken again for the same version
RETRY_S, RETRY_LIMIT_S = 10.0, 600.0


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """
    folder      of the journal
    store       of the versions, as the learner publishes them
    gates       records of the gate; the router's gate_folder
    recordings  folder in which the recorder keeps bags
    champion    folder of the policy that slot a serves at first
    plan        steps of each rollout
    gate_recordings  the newest bags that a candidate is compared on
    robot       robot file with the limits, where the bags lack them; or None
    router      its name; empty for the only one
    """

    folder: Path
    store: Path
    gates: Path
    recordings: Path
    champion: Path
    plan: str = PLAN
    gate_recordings: int = GATE_RECORDINGS
    robot: Path | None = None
    router: str = ''
    period_s: float = PERIOD_S
