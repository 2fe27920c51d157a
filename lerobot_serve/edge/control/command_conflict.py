"""
Detects other edge controllers that publish on this robot's command topic.

Two of them would send contradicting commands. The younger one exits and the older one continues.
The ticks in each published state show which is younger; one with unknown ticks is older than an
edge that has not commanded the robot yet. If no edge exits, all pause, and all but one send no
commands until restarted, because each would hold another pose. Plain; the executor thread.
"""

from __future__ import annotations

from collections.abc import Iterable
import enum
from typing import NamedTuple

# within this time a younger one has exited
GIVING_WAY_NS = 3_000_000_000
# within this time the ticks of one that publishes them are known
UNKNOWN_NS = 1_000_000_000


class OtherPublisher(NamedTuple):
    """Full name of a node, the unique gid of its publisher, and its ticks."""

    node: str
    gid: tuple[int, ...]
    ticks: int | None = None


class Own(NamedTuple):
    """Ticks of this edge, and whether it has commanded the robot."""

    ticks: int
    has_commanded: bool


def start_refusal(topic: str, rivals: Iterable[OtherPublisher]) -> str:
    """Return why an edge must not start; empty if it may."""
    names = _names(rivals)
    if not names:
        return ''
    return f'{names} already publishes commands on {topic}. Stop it, or use another command topic'


class ConflictAction(enum.Enum):
    """Reaction of an edge controller to a conflict."""

    NOTHING = enum.auto()
    GIVE_WAY = enum.auto()
    PAUSE = enum.auto()


class CommandConflict:
    """Decides the reaction of one edge, whose own publisher is `own`."""

    def __init__(self, topic: str, own: tuple[int, ...]) -> None:
        self._topic, self._own = topic, own
        self._since_ns: int | None = None
        # whether this node sends no commands until restarted
        self.is_silent = False
        self.text = ''

    def update(self, rivals: list[OtherPublisher], own: Own, now_ns: int) -> ConflictAction:
        """Process the current other publishers; return each reaction once."""
        if not rivals:
            self._since_ns = None
            if not self.is_silent:
                self.text = ''
            return ConflictAction.NOTHING
        if any(self._is_older(rival, own) for rival in rivals):
            return ConflictAction.GIVE_WAY
        if self._since_ns is None:
            self._since_ns = now_ns
        is_known = all(rival.ticks is not None for rival in rivals)
        if now_ns - self._since_ns < (GIVING_WAY_NS if is_known else UNKNOWN_NS):
            return ConflictAction.NOTHING
        return self._report_conflict(rivals)

    def _is_older(self, rival: OtherPublisher, own: Own) -> bool:
        if self.text:
            # neither exited, and the robot is at rest
            return False
        if rival.ticks is None:
            return not own.has_commanded
        return (rival.ticks, self._own) > (own.ticks, rival.gid)

    def _report_conflict(self, rivals: list[OtherPublisher]) -> ConflictAction:
        is_new = not self.text
        self.is_silent |= any(rival.gid < self._own for rival in rivals)
        part = 'this node sends no commands until restarted'
        self.text = (
            f'{_names(rivals)} also publishes commands on {self._topic}. Paused; '
            f'{part if self.is_silent else "the other node must yield"}. Stop one of them'
        )
        return ConflictAction.PAUSE if is_new else ConflictAction.NOTHING


def _names(rivals: Iterable[OtherPublisher]) -> str:
    return ' and '.join(sorted({rival.node for rival in rivals}))
