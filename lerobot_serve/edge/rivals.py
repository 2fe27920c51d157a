"""
Other edge controllers on this robot's command topic: found by the publishers of the topic.

Two of them would pull the robot to and fro. The younger one gives way: it ends, and the older one
goes on. The ticks in the state that each publishes, missed ones included, are its age; one whose
ticks are not known is older than an edge that has not commanded the robot yet. A state is up to
its period old when it is compared, and a rival appears younger than it is: of two of nearly one
age neither gives way at first, and then their gids decide. Where no edge gives way, all pause, and
all but one command nothing until they are restarted: of two that hold, each would hold another
pose. Plain; the executor thread.
"""

from __future__ import annotations

from collections.abc import Iterable
import enum
from typing import NamedTuple

# by then one that is younger by more than the age of its rival's state has ended
TIE_NS = 1_500_000_000
# by then a younger one has noticed and ended
GIVING_WAY_NS = 3_000_000_000
# and by then the ticks of one that publishes them are known
UNKNOWN_NS = 1_000_000_000


class Rival(NamedTuple):
    """Full name of a node, the gid of its publisher, which no other one has, and its age."""

    node: str
    gid: tuple[int, ...]
    ticks: int | None = None


class Own(NamedTuple):
    """The same of this edge, and whether it has commanded the robot."""

    ticks: int
    has_commanded: bool


def refusal(topic: str, rivals: Iterable[Rival]) -> str:
    """Return why an edge must not start; empty when it may."""
    names = _names(rivals)
    if not names:
        return ''
    return (
        f'{names} commands {topic} already, and two edge controllers would pull the robot to and '
        'fro: end the other one, or give this one another command topic'
    )


class Finding(enum.Enum):
    """What an edge controller does about its rivals."""

    NOTHING = enum.auto()
    GIVE_WAY = enum.auto()
    PAUSE = enum.auto()


class Rivalry:
    """What follows from the rivals of one edge, whose own publisher is `own`."""

    def __init__(self, topic: str, own: tuple[int, ...], *, tie_ticks: int) -> None:
        """Let gids decide between two whose ages differ by less than `tie_ticks`."""
        self._topic, self._own, self._tie_ticks = topic, own, tie_ticks
        self._since_ns: int | None = None
        # whether this one must not command until it is restarted
        self.is_silent = False
        self.text = ''

    def update(self, rivals: list[Rival], own: Own, now_ns: int) -> Finding:
        """Take in which rivals are there now; return what to do, each of it once."""
        if not rivals:
            self._since_ns = None
            if not self.is_silent:
                self.text = ''
            return Finding.NOTHING
        if self._since_ns is None:
            self._since_ns = now_ns
        is_over = now_ns - self._since_ns >= TIE_NS
        if any(self._is_older(rival, own) for rival in rivals) or (
            is_over and any(self._ties(rival, own) for rival in rivals)
        ):
            return Finding.GIVE_WAY
        is_known = all(rival.ticks is not None for rival in rivals)
        if now_ns - self._since_ns < (GIVING_WAY_NS if is_known else UNKNOWN_NS):
            return Finding.NOTHING
        return self._stand_against(rivals)

    def _is_older(self, rival: Rival, own: Own) -> bool:
        if self.text:
            # both stood their ground, and the robot is at rest
            return False
        if rival.ticks is None:
            return not own.has_commanded
        return (rival.ticks, self._own) > (own.ticks, rival.gid)

    def _ties(self, rival: Rival, own: Own) -> bool:
        """Return whether the gids decide, and decide against this edge."""
        if self.text or rival.ticks is None:
            return False
        return own.ticks - rival.ticks < self._tie_ticks and self._own > rival.gid

    def _stand_against(self, rivals: list[Rival]) -> Finding:
        is_new = not self.text
        self.is_silent |= any(rival.gid < self._own for rival in rivals)
        part = 'this one commands nothing until it is restarted'
        self.text = (
            f'{_names(rivals)} commands {self._topic}, too; paused, and '
            f'{part if self.is_silent else "the other one is to fall silent"}: end one of them'
        )
        return Finding.PAUSE if is_new else Finding.NOTHING


def _names(rivals: Iterable[Rival]) -> str:
    return ' and '.join(sorted({rival.node for rival in rivals}))
