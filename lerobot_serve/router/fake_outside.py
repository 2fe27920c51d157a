"""
An outside without ROS, for trying a dispatcher: it remembers what was to be done.

Called by the dispatcher's threads; read by whoever tries it, once they are done.
"""

from __future__ import annotations

from collections import deque

from lerobot_serve.router.flights import Flight
from lerobot_serve.router.robots import Robot
from lerobot_serve.router.sticky import Placement
from lerobot_serve.wire.chunk import Answer
from lerobot_serve.wire.executed import Executed
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.schema import Status

Failure = tuple[Flight, Status, str]


class FakeOutside:
    """
    An Outside whose deques hold the last `capacity` calls of each kind, oldest first. What is to
    happen within each call, whichever it is, goes into `called`.
    """

    def __init__(self, capacity: int | None = None) -> None:
        # server and bytes of each request
        self.sent: deque[tuple[str, bytes]] = deque(maxlen=capacity)
        self.replies: deque[tuple[Robot, bytes]] = deque(maxlen=capacity)
        self.failures: deque[Failure] = deque(maxlen=capacity)
        self.decisions: deque[tuple[Robot, Flight, Placement]] = deque(maxlen=capacity)
        self.reopened: deque[tuple[Robot, str]] = deque(maxlen=capacity)
        # the flight, who served it, and how
        self.served_by: deque[tuple[Flight, str, Answer]] = deque(maxlen=capacity)
        self.heard: deque[tuple[Robot, Header, Executed | None]] = deque(maxlen=capacity)
        self.ended: deque[tuple[Flight, str]] = deque(maxlen=capacity)
        self.wakes = 0

    def called(self) -> None:
        """Do nothing."""

    def send(self, server: str, raw: bytes) -> None:
        self.called()
        self.sent.append((server, raw))

    def reply(self, robot: Robot, raw: bytes) -> None:
        self.called()
        self.replies.append((robot, raw))

    def fail(self, flight: Flight, status: Status, text: str) -> None:
        self.called()
        self.failures.append((flight, status, text))

    def decided(self, robot: Robot, flight: Flight, placement: Placement) -> None:
        self.called()
        self.decisions.append((robot, flight, placement))

    def reopen(self, robot: Robot, server: str) -> None:
        self.called()
        self.reopened.append((robot, server))

    def wake(self) -> None:
        self.called()
        self.wakes += 1

    def served(self, flight: Flight, server: str, raw: bytes, answer: Answer) -> None:
        self.called()
        self.served_by.append((flight, server, answer))

    def unanswered(self, flight: Flight, reason: str) -> None:
        self.called()
        self.ended.append((flight, reason))

    def asked(self, robot: Robot, raw: bytes, header: Header, executed: Executed | None) -> None:
        self.called()
        self.heard.append((robot, header, executed))
