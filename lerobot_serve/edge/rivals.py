"""
Other edge controllers on this robot's command topic: found by the publishers of the topic.

Two of them would pull the robot to and fro. One that starts and finds another does not begin.
Where they find each other later, both pause, and all but one fall silent until they are restarted:
of two that hold, each would hold another pose. Plain; the executor thread.
"""

from __future__ import annotations

from collections.abc import Iterable

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


class Rivalry:
    """What follows from the rivals of one edge, whose own publisher is `own`."""

    def __init__(self, topic: str, own: tuple[int, ...]) -> None:
        self._topic, self._own = topic, own
        # whether this one must not command until it is restarted
        self.is_silent = False
        self.text = ''

    def look(self, rivals: list[Rival]) -> bool:
        """Take in who is there now; return whether this is news, upon which the robot pauses."""
        is_new = bool(rivals) and not self.text
        self.is_silent |= any(gid < self._own for _, gid in rivals)
        if rivals:
            part = 'this one commands nothing until it is restarted'
            self.text = (
                f'{_names(rivals)} commands {self._topic}, too; paused, and '
                f'{part if self.is_silent else "the other one is to fall silent"}: end one of them'
            )
        elif not self.is_silent:
            self.text = ''
        return is_new


def _names(rivals: Iterable[Rival]) -> str:
    return ' and '.join(sorted({node for node, _ in rivals}))
