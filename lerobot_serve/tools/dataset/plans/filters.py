# SPDX-License-Identifier: Apache-2.0
"""
Select episodes: success, failure, intervention, slot=NAME, policy=FINGERPRINT. Pure functions.

Filters of one kind are alternatives (success, failure: every labelled episode); those of different
kinds all hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.dataset.plans.episodes import EpisodePlan

WORDS = {'success': 'outcome', 'failure': 'outcome', 'intervention': 'intervention'}
KEYS = ('slot', 'policy')
ALLOWED = 'success, failure, intervention, slot=NAME, policy=FINGERPRINT'


class Filter(NamedTuple):
    """One filter: its kind and what it asks for."""

    kind: str
    value: str


def parse_filter(text: str) -> Filter:
    """Return the filter of a text. Raises WrongCommandLine."""
    key, has_value, value = text.partition('=')
    if not has_value and key in WORDS:
        return Filter(WORDS[key], key)
    if has_value and key in KEYS and value:
        return Filter(key, value)
    raise WrongCommandLine(f'--filter must be one of {ALLOWED}, got {text!r}')


def is_selected(episode: EpisodePlan, filters: Iterable[Filter]) -> bool:
    """Return whether an episode passes the filters."""
    kinds: dict[str, list[str]] = {}
    for one in filters:
        kinds.setdefault(one.kind, []).append(one.value)
    return all(any(_fits(episode, kind, value) for value in kinds[kind]) for kind in kinds)


def _fits(episode: EpisodePlan, kind: str, value: str) -> bool:
    if kind == 'outcome':
        return episode.label is (value == 'success')
    if kind == 'intervention':
        return episode.intervened
    if kind == 'slot':
        return value in episode.slots
    # the beginning of a fingerprint, as tables show it
    return any(policy.startswith(value) for policy in episode.policies)
