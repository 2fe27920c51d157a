# SPDX-License-Identifier: Apache-2.0
"""Which options a recorder has, and what their values may be. Plain; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lerobot_serve.parameters import ParameterError

LIMIT_MB = 10_000_000
LIMIT_S = 31_536_000
RING_S = 600
SLICES = 1_000_000
# option -> the strategies that take it
ONLY = {
    'topic': ('continuous', 'sentry'),
    'all': ('continuous', 'sentry'),
    'slice_size': ('sentry',),
    'slice_time': ('sentry',),
    'keep_slices': ('sentry',),
    'before': ('highlight',),
    'after': ('highlight',),
    'divergence': ('highlight',),
    'outcome_wait': ('episodic', 'dagger'),
    'gone_after': ('episodic', 'dagger'),
}
# option -> lowest and highest value
BOUNDS = {
    'max_size': (0, LIMIT_MB),
    'duration': (0, LIMIT_S),
    'slice_size': (0, LIMIT_MB),
    'slice_time': (0, LIMIT_S),
    'keep_slices': (0, SLICES),
    'before': (0.1, RING_S),
    'after': (0.1, RING_S),
    'divergence': (0, 1e9),
    'outcome_wait': (0, 3600),
    'gone_after': (1, 3600),
}
DEFAULTS = {'before': 10.0, 'after': 5.0, 'outcome_wait': 2.0, 'gone_after': 5.0}


def check_options(given: Mapping[str, Any]) -> None:
    """Raise ParameterError for a value that is not allowed, or has no effect."""
    strategy = given['strategy']
    for name, strategies in ONLY.items():
        if given.get(name) not in (None, False, []) and strategy not in strategies:
            raise ParameterError(
                f'{_flag(name)} has no effect on strategy {strategy}, only on '
                f'{" and ".join(strategies)}'
            )
    for name, (low, high) in BOUNDS.items():
        value = given.get(name)
        if value is not None and not low <= value <= high:
            limit = ' (0 for no limit)' if name in ('max_size', 'duration') else ''
            raise ParameterError(f'{_flag(name)} must be in [{low}, {high}]{limit}, got {value:g}')


def _flag(name: str) -> str:
    return f'--{name.replace("_", "-")}'
