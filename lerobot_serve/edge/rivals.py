"""
Other edge controllers on this robot's command topic: found by the publishers of the topic.

Two of them would pull the robot to and fro. An edge that has not commanded the robot yet gives
way: it ends. An edge that has commanded waits for a second, for the other one may give way, then
it pauses; of several that have commanded all but one fall silent until they are restarted, for of
two that hold, each would hold another pose. Plain; the executor thread.
"""

from __future__ import annotations

from collections.abc import Iterable
import enum

# by then an edge that gives way has gone
GRACE_NS = 1_000_000_000

# full name of a node, and the gid of its publisher, which no other one has
Rival = tuple[str, tuple[int, ...]]


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

    def __init__(self, topic: str, own: tuple[int, ...]) -> None:
        self._topic, self._own = topic, own
        self._since_ns: int | None = None
        # whether this one must not command until it is restarted
        self.is_silent = False
        self.text = ''

    def update(self, rivals: list[Rival], *, has_commanded: bool, now_ns: int) -> Finding:
        """Take in which rivals are there now; return what to do, each of it once."""
        if not rivals:
            self._since_ns = None
            if not self.is_silent:
                self.text = ''
            return Finding.NOTHING
        if not has_commanded:
            return Finding.GIVE_WAY
        if self._since_ns is None:
            self._since_ns = now_ns
        if now_ns - self._since_ns < GRACE_NS:
            return Finding.NOTHING
        return self._stand_against(rivals)

    def _stand_against(self, rivals: list[Rival]) -> Finding:
        is_new = not self.text
        self.is_silent |= any(gid < self._own for _, gid in rivals)
        part = 'this one commands nothing until it is restarted'
        self.text = (
            f'{_names(rivals)} commands {self._topic}, too; paused, and '
            f'{part if self.is_silent else "the other one is to fall silent"}: end one of them'
        )
        return Finding.PAUSE if is_new else Finding.NOTHING


def _names(rivals: Iterable[Rival]) -> str:
    return ' and '.join(sorted({node for node, _ in rivals}))
