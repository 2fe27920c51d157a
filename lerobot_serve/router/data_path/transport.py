"""What the dispatcher needs of the outside."""

from __future__ import annotations

from typing import Protocol

from lerobot_serve.router.data_path.in_flight import InFlightRequest
from lerobot_serve.router.placement.placement_table import Placement
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.wire.chunk import ReplySummary
from lerobot_serve.wire.execution_report import ExecutionReport
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.schema import Status


class Transport(Protocol):
    """Called without the dispatcher's lock, by any of its threads; the node implements it."""

    def send(self, server: str, raw: bytes) -> None:
        """Publish a request to a replica."""

    def reply(self, robot: ClientSession, raw: bytes) -> None:
        """Publish an answer to a robot."""

    def fail(self, flight: InFlightRequest, status: Status, text: str) -> None:
        """Tell a robot that there will be no actions."""

    def decided(self, robot: ClientSession, flight: InFlightRequest, placement: Placement) -> None:
        """An episode was placed, or moved."""

    def reopen_session(self, robot: ClientSession, server: str) -> None:
        """A replica has no session of this robot any more."""

    def wake(self) -> None:
        """Something is due earlier than the alarm knows."""

    def served(
        self, flight: InFlightRequest, server: str, raw: bytes, answer: ReplySummary
    ) -> None:
        """A robot was answered, with actions or without."""

    def unanswered(self, flight: InFlightRequest, reason: str) -> None:
        """A request ended without an answer, and the robot is not told."""

    def asked(
        self, robot: ClientSession, raw: bytes, header: Header, executed: ExecutionReport | None
    ) -> None:
        """A robot has asked, and told what it executed since it last did."""
