"""What the dispatcher needs of the outside."""

from __future__ import annotations

from typing import Protocol

from lerobot_serve.router.flights import Flight
from lerobot_serve.router.robots import Robot
from lerobot_serve.router.sticky import Placement
from lerobot_serve.wire.chunk import Answer
from lerobot_serve.wire.executed import Executed
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.schema import Status


class Outside(Protocol):
    """Called without the dispatcher's lock, by any of its threads; the node implements it."""

    def send(self, server: str, raw: bytes) -> None:
        """Publish a request to a replica."""

    def reply(self, robot: Robot, raw: bytes) -> None:
        """Publish an answer to a robot."""

    def fail(self, flight: Flight, status: Status, text: str) -> None:
        """Tell a robot that there will be no actions."""

    def decided(self, robot: Robot, flight: Flight, placement: Placement) -> None:
        """An episode was placed, or moved."""

    def reopen(self, robot: Robot, server: str) -> None:
        """A replica has no session of this robot any more."""

    def wake(self) -> None:
        """Something is due earlier than the alarm knows."""

    def served(self, flight: Flight, server: str, raw: bytes, answer: Answer) -> None:
        """A robot was answered, with actions or without."""

    def unanswered(self, flight: Flight, reason: str) -> None:
        """A request ended without an answer, and the robot is not told."""

    def asked(self, robot: Robot, raw: bytes, header: Header, executed: Executed | None) -> None:
        """A robot has asked, and told what it executed since it last did."""
