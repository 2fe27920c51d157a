# SPDX-License-Identifier: Apache-2.0
"""
Detects other edge controllers that publish on this robot's command topic.

Two edges would send contradicting commands. The younger one exits and the older one continues. The
age of an edge is its number of control steps, missed ones included, in its published state; an
edge of unknown age counts as older than an edge that has not commanded the robot yet. A state is
up to one period old when it is compared, so another edge appears younger than it is: of two edges
of nearly the same age neither exits at first, and then their gids decide. If no edge exits, all
pause, and all but one send no commands until restarted, because each would hold another pose.
Plain; the executor thread.
"""

from __future__ import annotations

from collections.abc import Iterable
import enum
from typing import NamedTuple

# within this time an edge that is younger by more than the age of a state has exited
TIE_NS = 1_500_000_000
# within this time a younger edge has exited
YOUNGER_EXITS_NS = 3_000_000_000
# within this time the age of an edge that publishes it is known
UNKNOWN_NS = 1_000_000_000


class OtherPublisher(NamedTuple):
    """Full name of a node, the unique gid of its publisher, and its age in control steps."""

    node: str
    gid: tuple[int, ...]
    age: int | None = None


class OwnAge(NamedTuple):
    """Age of this edge in control steps, and whether it has commanded the robot."""

    age: int
    has_commanded: bool


def start_refusal(topic: str, others: Iterable[OtherPublisher]) -> str:
    """Return why an edge must not start; empty if it may."""
    names = _names(others)
    if not names:
        return ''
    return f'{names} already publishes commands on {topic}. Stop it, or use another command topic'


class ConflictAction(enum.Enum):
    """Reaction of an edge controller to a conflict."""

    NONE = enum.auto()
    EXIT = enum.auto()
    PAUSE = enum.auto()


class CommandConflict:
    """Decides the reaction of one edge, whose own publisher is `own`."""

    def __init__(self, topic: str, own: tuple[int, ...], *, tie_steps: int) -> None:
        """Gids decide between edges whose ages differ by less than `tie_steps`."""
        self._topic, self._own, self._tie_steps = topic, own, tie_steps
        self._since_ns: int | None = None
        # whether this node sends no commands until restarted
        self.is_silent = False
        self.text = ''

    def update(self, others: list[OtherPublisher], own: OwnAge, now_ns: int) -> ConflictAction:
        """Process the current other publishers; return each reaction once."""
        if not others:
            self._since_ns = None
            if not self.is_silent:
                self.text = ''
            return ConflictAction.NONE
        if self._since_ns is None:
            self._since_ns = now_ns
        is_over = now_ns - self._since_ns >= TIE_NS
        if any(self._is_older(other, own) for other in others) or (
            is_over and any(self._ties(other, own) for other in others)
        ):
            return ConflictAction.EXIT
        is_known = all(other.age is not None for other in others)
        if now_ns - self._since_ns < (YOUNGER_EXITS_NS if is_known else UNKNOWN_NS):
            return ConflictAction.NONE
        return self._report_conflict(others)

    def _is_older(self, other: OtherPublisher, own: OwnAge) -> bool:
        if self.text:
            # neither exited, and the robot is at rest
            return False
        if other.age is None:
            return not own.has_commanded
        return (other.age, self._own) > (own.age, other.gid)

    def _ties(self, other: OtherPublisher, own: OwnAge) -> bool:
        """Return whether the gids decide, and decide against this edge."""
        if self.text or other.age is None:
            return False
        return own.age - other.age < self._tie_steps and self._own > other.gid

    def _report_conflict(self, others: list[OtherPublisher]) -> ConflictAction:
        is_new = not self.text
        self.is_silent |= any(other.gid < self._own for other in others)
        part = 'this node sends no commands until restarted'
        self.text = (
            f'{_names(others)} also publishes commands on {self._topic}. Paused; '
            f'{part if self.is_silent else "the other node must yield"}. Stop one of them'
        )
        return ConflictAction.PAUSE if is_new else ConflictAction.NONE


def _names(others: Iterable[OtherPublisher]) -> str:
    return ' and '.join(sorted({other.node for other in others}))
