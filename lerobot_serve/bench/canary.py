"""
How often a canary is wrong, how many episodes it takes, and what one look costs.

Each round is a rollout that never happened: a candidate whose true success rate is known goes
through the plan and is looked at after every episode. A candidate that is worse by the margin must
hardly ever be promoted, one that is as good as the champion hardly ever be rolled back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
import time

import numpy as np

from benchmarks.results.report import Case
from lerobot_serve.router.canary.comparison import StepComparison
from lerobot_serve.router.canary.forecast import episodes_to_decide
from lerobot_serve.router.canary.plan import parse_plan, Terms
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.canary.trial import BEGUN, EpisodeEvent, StepTrial
from lerobot_serve.tools.plan.rollout_simulation import (
    RolloutResult,
    simulate_rollout,
    SuccessRates,
)

ABOUT = 'how often a canary is wrong, and how many episodes it takes'
STEPS, MINIMUM_EPISODES = ('5', '25', '50', '100'), 20
TERMS = Terms()
EPISODES, SEED = 8000, 0
PARAMETERS = {
    'plan': ', '.join(STEPS),
    'minimum_episodes': MINIMUM_EPISODES,
    'margin': TERMS.margin,
    'false_promotion': TERMS.false_promotion,
    'false_rollback': TERMS.false_rollback,
    'episodes_at_most': EPISODES,
    'seed': SEED,
}
CHAMPIONS = (0.3, 0.6, 0.9)
# candidate minus champion
OTHERS = ((0.6, 0.3), (0.8, 0.1), (0.8, -0.2), (0.9, -0.6))


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each pair of success rates, and one of what a look costs."""
    margin = TERMS.margin
    cases = [
        measure_rates(SuccessRates(champion, champion - margin), rounds) for champion in CHAMPIONS
    ]
    cases += [measure_rates(SuccessRates(champion, champion), rounds) for champion in CHAMPIONS]
    cases += [
        measure_rates(SuccessRates(champion, champion + by), rounds) for champion, by in OTHERS
    ]
    return [*cases, measure_look(rounds)]


def measure_rates(rates: SuccessRates, rounds: int) -> Case:
    """Let so many canaries with these true rates go through the plan."""
    plan = parse_plan(STEPS, minimum_episodes=MINIMUM_EPISODES, minimum_s=0)
    rng = np.random.default_rng(SEED)
    results, durations_ms = [], []
    for _ in range(rounds):
        begin_ns = time.perf_counter_ns()
        results.append(simulate_rollout(rng.random((2, EPISODES)), rates, plan, TERMS))
        durations_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
    ends = Counter(result.state for result in results)
    firsts = [result.first_promotion for result in results if result.first_promotion]
    backs = [r.candidate_episodes for r in results if r.state is CanaryPhase.ROLLED_BACK]
    return Case(
        f'champion {rates.champion:.0%}, candidate {rates.candidate:.0%}',
        parameters={
            'median_episodes_to_promote': median(firsts, rounds),
            'median_episodes_to_roll_back': median(backs, rounds),
        },
        counts={
            'ever_promoted': len(firsts),
            'rolled_back': ends[CanaryPhase.ROLLED_BACK],
            'undecided': ends[CanaryPhase.HELD],
        },
        series_ms={'one rollout': durations_ms},
        goals=goals(rates, results),
    )


def median(episodes: list[int], rounds: int) -> float | None:
    """Return the median over all rounds, None when most of them never came so far."""
    middle = float(np.median([*episodes, *[np.inf] * (rounds - len(episodes))]))
    return middle if np.isfinite(middle) else None


def goals(rates: SuccessRates, results: list[RolloutResult]) -> dict[str, bool]:
    """Return whether the stated error rates hold, where these rates are such a case."""
    count = len(results)
    found = {}
    if rates.candidate <= rates.champion - TERMS.margin:
        wrong = sum(result.first_promotion is not None for result in results)
        name = f'at most {TERMS.false_promotion:.0%} promoted'
        found[name] = wrong <= TERMS.false_promotion * count
    if rates.candidate >= rates.champion:
        wrong = sum(result.state is CanaryPhase.ROLLED_BACK for result in results)
        name = f'at most {TERMS.false_rollback:.0%} rolled back'
        found[name] = wrong <= TERMS.false_rollback * count
    return found


def measure_look(rounds: int) -> Case:
    """Time what an episode costs the executor thread: weighing it, and forecasting."""
    series_ms: dict[str, list[float]] = {'comparison': [], 'forecast': []}
    for i in range(rounds):
        rng = np.random.default_rng(i)
        trial = StepTrial(TERMS.margin, TERMS.block_episodes)
        trial.take(list(episodes(rng, 1000)))
        begin_ns = time.perf_counter_ns()
        trial.take(list(episodes(rng, 1, first=1000)))
        StepComparison().look(trial, TERMS)
        middle_ns = time.perf_counter_ns()
        episodes_to_decide(trial, share_percent=5, terms=TERMS, trials=len(STEPS) - 1)
        end_ns = time.perf_counter_ns()
        series_ms['comparison'].append((middle_ns - begin_ns) / 1e6)
        series_ms['forecast'].append((end_ns - middle_ns) / 1e6)
    return Case('one look with a new outcome', series_ms=series_ms)


def episodes(rng: np.random.Generator, count: int, *, first: int = 0) -> Iterator[EpisodeEvent]:
    """Return episodes at 5 %, of which one in fifty has no verdict yet."""
    for number in range(first, first + count):
        name, arm = str(number), 'candidate' if rng.random() < 0.05 else 'champion'
        yield EpisodeEvent(name, BEGUN, arm)
        if rng.random() < 0.98:
            yield EpisodeEvent(name, 'success' if rng.random() < 0.8 else 'failure', arm)
