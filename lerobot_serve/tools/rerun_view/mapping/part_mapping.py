# SPDX-License-Identifier: Apache-2.0
"""What the mappings of a robot and of a node share: states, and events. One thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from lerobot_serve.tools.rerun_view.mapping.entries import (
    clock_of,
    Emit,
    Event,
    EVENTS,
    Level,
    Path,
    path_part,
    State,
    STATES,
    Times,
    Value,
)

Count: TypeAlias = Callable[..., None]


class PartMapping:
    """Emits entities below the path of one robot or node."""

    def __init__(self, root: str, name: str, emit: Emit, count: Count) -> None:
        self.path = (root, path_part(name))
        self._emit_at, self._count = emit, count
        self._clock = clock_of(name)
        self._states: dict[str, str] = {}

    def _emit(self, path: Path, value: Value, times: Times) -> None:
        self._emit_at((*self.path, *path), value, times)

    def _event(self, text: str, times: Times, level: Level = Level.INFO) -> None:
        """Show an event. The viewer mixes up the levels of rows that have different clocks."""
        self._emit((EVENTS,), Event(text, level), replace(times, clock=''))

    def _change(self, name: str, value: str, times: Times) -> bool:
        """Show a state if it is another one; return whether it is."""
        if value == self._states.get(name, ''):
            return False
        self._states[name] = value
        self._emit((STATES, name), State(value), times)
        return True


def because(text: str, reason: str) -> str:
    """Return a text with its reason, if there is one."""
    return f'{text}: {reason}' if reason else text
