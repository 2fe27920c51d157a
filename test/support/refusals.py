# SPDX-License-Identifier: Apache-2.0
"""What a reader of a file says to each single change of a valid one: its refusals as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
import math
from typing import Any

import pytest

SCALARS = (None, True, -1, 10**9, 1.5, math.nan, '', 'x', 'y' * 5000, [], {})
CONTAINERS = (None, 'x', 7, [], {}, ['x', 'x'])
UNKNOWN = 'unheard_of'
SHOWN = 40
CASE_SHOWN = 200

Place = tuple[str | int, ...]
Told = Callable[[Any], str]


def refusals(
    document: Any, written: Callable[[Any], str], read: Callable[[str], object]
) -> Iterator[str]:
    """Yield place, change and answer, one a line."""
    for place, what, changed in changes(document):
        yield f'{named(place)} {what}: {answer(read, written(changed))}\n'


def refused(
    cases: Iterable[tuple[Any, ...]],
    act: Callable[..., object],
    error: type[Exception],
    told: Told = str,
) -> str:
    """Return each case with the one line that it is refused with; fail where one is not."""
    lines = []
    for case in cases:
        with pytest.raises(error) as refusal:
            act(*case)
        text = told(refusal.value)
        assert len(text.splitlines()) == 1, case
        lines.append(f'{", ".join(map(repr, case))[:CASE_SHOWN]}\n  {text}\n')
    return ''.join(lines)


def answer(read: Callable[[str], object], text: str) -> str:
    try:
        read(text)
    except Exception as error:
        return f'{type(error).__name__}: {" ".join(str(error).split())}'
    return 'accepted'


def changes(document: Any) -> Iterator[tuple[Place, str, Any]]:
    """Yield the place, the change in words, and the changed document."""
    for place, value in nodes(document, ()):
        if place:
            yield place, 'removed', with_value(document, place, remove=True)
            others = CONTAINERS if isinstance(value, dict | list) else SCALARS
            for other in others:
                if type(other) is not type(value) or other != value:
                    yield place, f'= {shown(other)}', with_value(document, place, other)
        if isinstance(value, dict):
            yield (*place, UNKNOWN), 'added', with_value(document, (*place, UNKNOWN), 1)


def nodes(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    yield place, value
    entries: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        # of a list the first entry, which stands for all
        entries = enumerate(value[:1])
    for key, each in entries:
        yield from nodes(each, (*place, key))


def with_value(document: Any, place: Place, value: Any = None, *, remove: bool = False) -> Any:
    changed = deepcopy(document)
    parent = changed
    for key in place[:-1]:
        parent = parent[key]
    if remove:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return changed


def named(place: Place) -> str:
    parts = [f'[{key}]' if isinstance(key, int) else f'.{key}' for key in place]
    return ''.join(parts).lstrip('.')


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f'{text[:SHOWN]}... ({len(text)})'
