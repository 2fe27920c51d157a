# SPDX-License-Identifier: Apache-2.0
"""
The plan of a canary: its steps, and the policy that it is for.
Plain data; the parameters of a router bound its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
import re

from lerobot_serve.parameters import ParameterError

# share, minimum episodes, minimum seconds
STEP_PATTERN = re.compile(r'([0-9]+)(?::([0-9]+)(?::([0-9]+(?:\.[0-9]+)?))?)?', re.ASCII)
STEP_FORMAT = "'SHARE', 'SHARE:EPISODES' or 'SHARE:EPISODES:SECONDS', for example '25:50:600'"
EPISODES_LIMIT, SECONDS_LIMIT = 1_000_000, 1e7
# factor on the champion's share, since both shares are noisy, and the most that it may add
CHAMPION_SHARE_FACTOR, CHAMPION_MARGIN_PERCENT = 2.0, 10.0


@dataclass(frozen=True, slots=True)
class CanaryStep:
    """A share of new episodes, and the minimum episodes and time before the next step."""

    share_percent: int
    minimum_episodes: int = 0
    minimum_s: float = 0.0

    @property
    def words(self) -> str:
        time = f' and {self.minimum_s:g} s' if self.minimum_s else ''
        return f'{self.share_percent} % for at least {self.minimum_episodes} episodes{time}'


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """Steps with rising shares; the last step is 100 %."""

    steps: tuple[CanaryStep, ...]

    @property
    def text(self) -> str:
        """The plan in the format of the parameter canary.plan."""
        trials = [f'{s.share_percent}:{s.minimum_episodes}:{s.minimum_s:g}' for s in self.trials]
        return ', '.join([*trials, '100'])

    @property
    def words(self) -> str:
        """The plan in words: the share of each step, and what it needs at least."""
        return ', '.join([*(step.words for step in self.trials), 'then 100 %'])

    @property
    def trials(self) -> tuple[CanaryStep, ...]:
        """The steps below 100 %, at which both policies receive episodes."""
        return self.steps[:-1]


def parse_plan(
    texts: Sequence[str],
    *,
    minimum_episodes: int = 20,
    minimum_s: float = 600.0,
    name: str = 'canary_steps',
) -> CanaryPlan | None:
    """
    Return the plan; None for an empty list. `minimum_episodes` and `minimum_s` apply to steps
    without their own; `name` is the parameter in error texts. Raises ParameterError.
    """
    if not any(text.strip() for text in texts):
        return None
    steps = tuple(_step(name, text, minimum_episodes, minimum_s) for text in texts)
    shares = [step.share_percent for step in steps]
    if any(later <= earlier for earlier, later in pairwise(shares)):
        raise ParameterError(f'{name} must rise from step to step, got shares {_row(shares)}')
    if shares[-1] != 100:
        raise ParameterError(f"{name} must end with '100', got shares {_row(shares)}")
    if len(steps) == 1:
        raise ParameterError(
            f'{name} must have a step below 100, at which the policies are compared, got only '
            "'100'; for example '5', '25', '50', '100'"
        )
    if ':' in texts[-1]:
        raise ParameterError(
            f"{name} must end with '100', got {texts[-1]!r}: the last step has no minimums"
        )
    return CanaryPlan((*steps[:-1], CanaryStep(100)))


def _step(name: str, text: str, minimum_episodes: int, minimum_s: float) -> CanaryStep:
    found = STEP_PATTERN.fullmatch(text.strip())
    if not found:
        raise ParameterError(f'each of {name} must be {STEP_FORMAT}; got {text!r}')
    share, episodes, seconds = found.groups()
    step = CanaryStep(
        _whole(share),
        minimum_episodes if episodes is None else _whole(episodes),
        float(minimum_s if seconds is None else seconds),
    )
    for what, value, low, high in (
        ('a share', step.share_percent, 1, 100),
        ('minimum episodes', step.minimum_episodes, 0, EPISODES_LIMIT),
        ('minimum seconds', step.minimum_s, 0, SECONDS_LIMIT),
    ):
        if not low <= value <= high:
            raise ParameterError(
                f'{name}: {what} must be in [{low:g}, {high:g}], got {value:g} in {text!r}'
            )
    return step


def _whole(digits: str) -> int:
    # int() rejects thousands of digits; ten digits exceed every bound
    return int(digits.lstrip('0')[:10] or '0')


def _row(shares: Sequence[int]) -> str:
    return ', '.join(str(share) for share in shares)


def allowed_percent(limit: float, champion: float) -> float:
    """Return the largest share of the candidate beside that of the champion [%]."""
    most = min(CHAMPION_SHARE_FACTOR * champion, champion + CHAMPION_MARGIN_PERCENT)
    return max(limit, min(most, 100.0))


def other_policy_text(planned: str, candidate: str) -> str:
    """
    Return why a candidate waits without a share that the plan is not for; empty when it is for it,
    or a fingerprint is not known. A server that restarts with other weights, or a file that is
    replaced, must not begin a rollout that no person started.
    """
    if not planned or candidate in ('', planned):
        return ''
    return (
        f'the plan is for {planned}, and slot b serves {candidate}, which gets no episodes. To '
        'start a rollout of it: `lerobot-serve rollout start`'
    )
