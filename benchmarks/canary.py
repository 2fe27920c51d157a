# SPDX-License-Identifier: Apache-2.0
"""
Simulated canaries whose failures come in runs of one robot: how often each decides wrongly, and
after how many episodes a good candidate is promoted. Plain; main thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness.rollout_simulation import (
    ArmBehavior,
    evidence,
    sequential_test,
    SimulatedFleet,
)
from benchmarks.results.report import Case
from lerobot_serve.router.parameters import RouterParameters

ABOUT = 'simulated canaries: wrong decisions, and episodes until the promotion'
STREAMS_A_ROUND = 5
TERMS = RouterParameters()
PARAMETERS = {
    'streams': f'{STREAMS_A_ROUND} x rounds',
    'champion': 0.9,
    'margin': TERMS.canary_margin,
    'share': 0.5,
    'false_promotion': TERMS.canary_false_promotion,
    'false_rollback': TERMS.canary_false_rollback,
}
GOOD, BAD = ArmBehavior(0.9), ArmBehavior(0.8)
RUNS = (5, 10, 20)
ROBOTS = (10, 50)


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return a case for each kind of fleet."""
    streams = STREAMS_A_ROUND * rounds
    worse, good = worse_fleets(), good_fleets()
    return [
        *(worse_case(name, fleet, streams) for name, fleet in worse.items()),
        *(good_case(name, fleet, streams) for name, fleet in good.items()),
    ]


def worse_fleets() -> dict[str, SimulatedFleet]:
    """Return fleets whose candidate is worse by the margin."""
    fleets = {}
    for robots in ROBOTS:
        text = f'worse, {robots} robots'
        fleet = SimulatedFleet(GOOD, BAD, robots=robots)
        fleets[f'{text}, no runs'] = fleet
        for run in RUNS:
            of_bad, of_good = replace(BAD, robot_run=run), replace(GOOD, robot_run=run)
            fleets[f'{text}, runs of {run}'] = replace(fleet, candidate=of_bad)
            both = replace(fleet, champion=of_good, candidate=of_bad)
            fleets[f'{text}, runs of {run} of both'] = both
            slips = replace(GOOD, slip=run, slipped=1 - BAD.success / GOOD.success)
            fleets[f'{text}, slips of {run}'] = replace(fleet, candidate=slips)
    five = SimulatedFleet(GOOD, BAD, share_percent=5, episodes=8000)
    for run in RUNS:
        of_bad = replace(BAD, robot_run=run)
        fleets[f'worse, 10 robots, share 5 %, runs of {run}'] = replace(five, candidate=of_bad)
    return fleets


def good_fleets() -> dict[str, SimulatedFleet]:
    """Return fleets whose candidate is as good as the champion, or better."""
    fleets = {}
    for robots in ROBOTS:
        for champion, candidate in ((0.95, 0.95), (0.9, 0.9), (0.8, 0.8), (0.8, 0.9), (0.9, 1.0)):
            name = f'{robots} robots, champion {champion:.0%}, candidate {candidate:.0%}'
            fleets[name] = SimulatedFleet(
                ArmBehavior(champion),
                ArmBehavior(candidate),
                robots=robots,
                episodes=3000,
            )
        for run in RUNS:
            fleets[f'equal, {robots} robots, runs of {run}'] = SimulatedFleet(
                GOOD, replace(GOOD, robot_run=run), robots=robots, episodes=4000
            )
    return fleets


@dataclass(frozen=True, slots=True)
class Decided:
    """Whether a stream ever promotes and rolls back, and the candidate's episodes until then."""

    promoted: bool
    rolled_back: bool
    episodes: int
    # if each failure counted, whatever robot it is of
    promoted_alone: bool
    episodes_alone: int


def worse_case(name: str, fleet: SimulatedFleet, streams: int) -> Case:
    """Count promotions of a candidate that is worse by the margin."""
    ends = [decide(fleet, seed) for seed in range(streams)]
    promoted, bound = sum(end.promoted for end in ends), TERMS.canary_false_promotion
    alone = sum(end.promoted_alone for end in ends)
    return Case(
        name,
        {
            'episodes': fleet.episodes,
            'promoted': f'{promoted / streams:.1%}',
            'promoted_if_each_failure_counted': f'{alone / streams:.1%}',
        },
        {'streams': streams},
        goals={f'promoted at most {bound:.0%}': promoted <= bound * streams},
    )


def good_case(name: str, fleet: SimulatedFleet, streams: int) -> Case:
    """Count promotions and rollbacks of a candidate that is not worse."""
    ends = [decide(fleet, seed) for seed in range(streams)]
    promoted, rolled_back = sum(e.promoted for e in ends), sum(e.rolled_back for e in ends)
    bound = TERMS.canary_false_rollback
    return Case(
        name,
        {
            'episodes': fleet.episodes,
            'promoted': f'{promoted / streams:.1%}',
            'rolled_back': f'{rolled_back / streams:.1%}',
            'median_episodes': median(end.episodes for end in ends),
            'median_if_each_failure_counted': median(end.episodes_alone for end in ends),
        },
        {'streams': streams},
        goals={f'rolled back at most {bound:.0%}': rolled_back <= bound * streams},
    )


def decide(fleet: SimulatedFleet, seed: int) -> Decided:
    """Return the decisions of one stream."""
    arms, goods = fleet.draw(np.random.default_rng(seed))
    passes, is_worse = sequential_test(arms, goods, TERMS, 1, fleet.robots)
    alone = evidence(arms, goods, TERMS.canary_block_episodes, TERMS.canary_margin, sign=1)
    undecided = alone < TERMS.promotion_level
    return Decided(
        passes < len(arms),
        is_worse < len(arms),
        int(arms[: passes + 1].sum()),
        not undecided[-1],
        int(arms[undecided].sum()),
    )
