# SPDX-License-Identifier: Apache-2.0
"""
The plan of a canary, fixed before the first episode: its steps and error bounds.

Plain data, checked when it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
import math
import re

from lerobot_serve.parameters import ParameterError

# share, minimum episodes, minimum seconds
STEP_PATTERN = re.compile(r'([0-9]+)(?::([0-9]+)(?::([0-9]+(?:\.[0-9]+)?))?)?', re.ASCII)
STEP_FORMAT = "'SHARE', 'SHARE:EPISODES' or 'SHARE:EPISODES:SECONDS', for example '25:50:600'"
EPISODES_LIMIT, SECONDS_LIMIT, BLOCK_LIMIT = 1_000_000, 1e7, 1000


@dataclass(frozen=True, slots=True)
class CanaryStep:
    """A share of the new episodes, and what it takes at least before the next."""

    share_percent: int
    minimum_episodes: int = 0
    minimum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """Steps with rising shares; the last is 100 % and is the end."""

    steps: tuple[CanaryStep, ...]

    @property
    def text(self) -> str:
        """The plan as a person would write it."""
        trials = [f'{s.share_percent}:{s.minimum_episodes}:{s.minimum_s:g}' for s in self.trials]
        return ', '.join([*trials, '100'])

    @property
    def trials(self) -> tuple[CanaryStep, ...]:
        """The steps at which both policies take episodes."""
        return self.steps[:-1]


@dataclass(frozen=True, slots=True)
class Terms:
    """
    How sure a canary has to be.

    `margin`: by how much the candidate's success rate may be lower and still pass.
    `false_promotion`: bound on the probability that a candidate that is worse by the margin or
    more is ever promoted. `false_rollback`: bound on the probability that the comparison ever
    rolls back a candidate that is not worse. `block_episodes`: so many consecutive episodes of the
    candidate may fail for one reason; the promotion test takes them together as one observation.
    """

    margin: float = 0.1
    false_promotion: float = 0.05
    false_rollback: float = 0.05
    block_episodes: int = 5

    def __post_init__(self) -> None:
        _check('margin', self.margin, 0.0, 0.5)
        _check('false_promotion', self.false_promotion, 1e-9, 0.5)
        _check('false_rollback', self.false_rollback, 1e-9, 0.5)
        _check('block_episodes', self.block_episodes, 1, BLOCK_LIMIT)

    @property
    def promotion_level(self) -> float:
        """The log e at which the candidate is shown not to be worse by the margin."""
        return -math.log(self.false_promotion)

    def rollback_level(self, trials: int) -> float:
        """Return the log e of worse; the tests of all steps share the error rate."""
        return -math.log(self.false_rollback / trials)

    @property
    def text(self) -> str:
        return (
            f'margin {self.margin:g}, false promotion {self.false_promotion:g}, '
            f'false rollback {self.false_rollback:g}, blocks of {self.block_episodes} episodes'
        )


def parse_plan(
    texts: Sequence[str],
    *,
    minimum_episodes: int = 20,
    minimum_s: float = 600.0,
    name: str = 'canary_steps',
) -> CanaryPlan | None:
    """
    Return the plan, None when there is no text: no canary. The two numbers hold where a step
    names none; `name` is the parameter that errors speak of. Raises ParameterError.
    """
    if not any(text.strip() for text in texts):
        return None
    _check('minimum_episodes', minimum_episodes, 0, EPISODES_LIMIT)
    _check('minimum_s', minimum_s, 0.0, SECONDS_LIMIT)
    steps = tuple(_step(name, text, minimum_episodes, minimum_s) for text in texts)
    shares = [step.share_percent for step in steps]
    if any(later <= earlier for earlier, later in pairwise(shares)):
        raise ParameterError(f'{name} must rise from step to step, got shares {_row(shares)}')
    if shares[-1] != 100:
        raise ParameterError(f"{name} must end with '100', got shares {_row(shares)}")
    if len(steps) == 1:
        raise ParameterError(
            f"{name} must have a step below 100, at which the policies are compared; got '100' "
            "alone. For example: '5', '25', '50', '100'"
        )
    if ':' in texts[-1]:
        raise ParameterError(
            f"{name} must end with '100' alone, got {texts[-1]!r}: behind it nothing is promoted, "
            'so minimums would do nothing'
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
    # Python refuses to read thousands of digits; ten are above every bound
    return int(digits.lstrip('0')[:10] or '0')


def _check(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ParameterError(f'{name} must be in [{low:g}, {high:g}], got {value!r}')


def _row(shares: Sequence[int]) -> str:
    return ', '.join(str(share) for share in shares)
