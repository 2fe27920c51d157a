# SPDX-License-Identifier: Apache-2.0
"""
The strategies and options of a recorder: one table for the verb, fleet files and the launch file.

Plain and light, since `lerobot-serve record --help` imports it; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lerobot_serve.parameters import ParameterError

CONTINUOUS, EPISODIC, SENTRY = 'continuous', 'episodic', 'sentry'
HIGHLIGHT, DAGGER = 'highlight', 'dagger'
# what each is for, in the order of the help
STRATEGIES = {
    CONTINUOUS: 'all the time, into one bag',
    EPISODIC: 'one bag for each episode of each robot',
    SENTRY: 'all the time, one bag after the other',
    HIGHLIGHT: 'some seconds before and after what is worth a look',
    DAGGER: 'as episodic; only episodes with commands of a person stay',
}
LIMIT_MB = 10_000_000
LIMIT_S = 31_536_000
RING_S = 600
SLICES = 1_000_000


class RecorderOption(NamedTuple):
    """
    An option that is a number: what it means, its range and default, and the strategies that take
    it; none: all of them.
    """

    text: str
    unit: str
    low: float
    high: float
    default: float = 0
    strategies: tuple[str, ...] = ()
    is_whole: bool = False

    @property
    def help(self) -> str:
        """Return the line of the help."""
        whose = f'{" and ".join(self.strategies)}: ' if self.strategies else ''
        unit = f' [{self.unit}]' if self.unit else ''
        return f'{whose}{self.text}{unit} ({self.default:g})'


EPISODES = EPISODIC, DAGGER
OPTIONS = {
    'max_size': RecorderOption('stop at this size of all bags; 0: never', 'MB', 0, LIMIT_MB),
    'duration': RecorderOption('stop after this time; 0: never', 's', 0, LIMIT_S),
    'slice_size': RecorderOption('size of a slice; 0: no bound', 'MB', 0, LIMIT_MB, 0, (SENTRY,)),
    'slice_time': RecorderOption(
        'duration of a slice; 0: no bound', 's', 0, LIMIT_S, 0, (SENTRY,)
    ),
    'keep_slices': RecorderOption(
        'slices that stay; older ones are deleted; 0: all stay', '', 0, SLICES, 0, (SENTRY,), True
    ),
    'before': RecorderOption('time before a trigger', 's', 0.1, RING_S, 10.0, (HIGHLIGHT,)),
    'after': RecorderOption('time after the last trigger', 's', 0.1, RING_S, 5.0, (HIGHLIGHT,)),
    'divergence': RecorderOption(
        'a shadow divergence above this triggers; 0: none does', '', 0, 1e9, 0, (HIGHLIGHT,)
    ),
    'outcome_wait': RecorderOption(
        'how long an episode waits for its outcome', 's', 0, 3600, 2.0, EPISODES
    ),
    'gone_after': RecorderOption(
        'when a silent robot has left its episode', 's', 1, 3600, 5.0, EPISODES
    ),
}
# options that are not numbers -> the strategies that take them
TOPIC_OPTIONS = {'topic': (CONTINUOUS, SENTRY), 'all': (CONTINUOUS, SENTRY)}


def default(name: str) -> float:
    """Return the default of an option."""
    return OPTIONS[name].default


def check_options(given: Mapping[str, Any]) -> None:
    """Raise ParameterError for a value that is not allowed, or has no effect."""
    strategy = given['strategy']
    takers = TOPIC_OPTIONS | {name: each.strategies for name, each in OPTIONS.items()}
    for name, strategies in takers.items():
        is_given = given.get(name) not in (None, False, [])
        if is_given and strategies and strategy not in strategies:
            raise ParameterError(
                f'{flag(name)} has no effect on strategy {strategy}, only on '
                f'{" and ".join(strategies)}'
            )
    for name, option in OPTIONS.items():
        value = given.get(name)
        if value is not None and not option.low <= value <= option.high:
            raise ParameterError(
                f'{flag(name)} must be in [{option.low}, {option.high}], got {value:g}'
            )


def flag(name: str) -> str:
    """Return an option as it is typed."""
    return f'--{name.replace("_", "-")}'
