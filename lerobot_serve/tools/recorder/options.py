# SPDX-License-Identifier: Apache-2.0
"""
The strategies and numbers of a recorder: one table for the verb, fleet files and the launch file.

Plain and light, since `lerobot-serve record --help` imports it; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.argument import Argument, parameters_of

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
SIZES_MB, TIMES_S, SLICES, RING_S = (0, 10_000_000), (0, 31_536_000), (0, 1_000_000), (0.1, 600)


@dataclass(frozen=True, slots=True)
class RecordingRules:
    """
    When bags end, and which stay. `only_with_person`: of the episodes that their robot ended those
    in which a person commanded.
    """

    max_size: Annotated[
        float, Argument('stop at this size of all bags; 0: never [MB] (0)', 'MB', bounds=SIZES_MB)
    ] = 0.0
    duration: Annotated[
        float, Argument('stop after this time; 0: never [s] (0)', 'S', bounds=TIMES_S)
    ] = 0.0
    slice_size: Annotated[
        float, Argument('sentry: size of a slice; 0: no bound [MB] (0)', 'MB', bounds=SIZES_MB)
    ] = 0.0
    slice_time: Annotated[
        float, Argument('sentry: duration of a slice; 0: no bound [s] (0)', 'S', bounds=TIMES_S)
    ] = 0.0
    keep_slices: Annotated[
        int,
        Argument(
            'sentry: slices that stay; older ones are deleted; 0: all stay (0)',
            'N',
            bounds=SLICES,
        ),
    ] = 0
    before: Annotated[
        float, Argument('highlight: time before a trigger [s]', 'S', bounds=RING_S)
    ] = 10.0
    after: Annotated[
        float, Argument('highlight: time after the last trigger [s]', 'S', bounds=RING_S)
    ] = 5.0
    divergence: Annotated[
        float,
        Argument(
            'highlight: a shadow divergence above this triggers; 0: none does (0)',
            'N',
            bounds=(0, 1e9),
        ),
    ] = 0.0
    outcome_wait: Annotated[
        float,
        Argument(
            'episodic and dagger: how long an episode waits for its outcome [s]',
            'S',
            bounds=(0, 3600),
        ),
    ] = 2.0
    gone_after: Annotated[
        float,
        Argument(
            'episodic and dagger: when a silent robot has left its episode [s]',
            'S',
            bounds=(1, 3600),
        ),
    ] = 5.0
    only_with_person: bool = False


NUMBERS = parameters_of(RecordingRules)
# option -> the strategies that take it; others are of all
TAKERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(('topic', 'all'), (CONTINUOUS, SENTRY)),
    **dict.fromkeys(('slice_size', 'slice_time', 'keep_slices'), (SENTRY,)),
    **dict.fromkeys(('before', 'after', 'divergence'), (HIGHLIGHT,)),
    **dict.fromkeys(('outcome_wait', 'gone_after'), (EPISODIC, DAGGER)),
}


def check_options(given: Mapping[str, Any]) -> None:
    """Raise ParameterError for a value that is not allowed, or has no effect."""
    strategy = given['strategy']
    for name, strategies in TAKERS.items():
        if given.get(name) and strategy not in strategies:
            raise ParameterError(
                f'{flag(name)} has no effect on strategy {strategy}, only on '
                f'{" and ".join(strategies)}'
            )
    for each in NUMBERS:
        each.checked(given.get(each.name))


def flag(name: str) -> str:
    """Return an option as it is typed."""
    return f'--{name.replace("_", "-")}'
