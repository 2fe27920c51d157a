"""What a client asks for when it opens a session, and the ways in which that is refused."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.wire.schema import Codec, Refusal, SCHEMA_VERSION


class Refused(Exception):
    """No session; `code` for machines, the text for people: what was asked, what is served."""

    def __init__(self, code: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Unreachable(Exception):
    """The server did not answer; it may later."""


@dataclass(frozen=True, slots=True)
class CameraSpec:
    """A camera as a robot has it or as a policy wants it; 0 means any size."""

    name: str
    height: int = 0
    width: int = 0
    channels: int = 3


@dataclass(frozen=True, slots=True)
class SessionAsk:
    """The request half of OpenSession.srv."""

    client_id: str
    instance: int
    session_epoch: int
    reply_topic: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[CameraSpec, ...]
    fps: float
    schema_version: int = SCHEMA_VERSION
    robot_type: str = ''
    policy: str = ''
    task: str = ''
    wants_rtc: bool = False
    rtc_execution_horizon: int = 0
    codec: int = Codec.JPEG
    answer_within_s: float = 0.0
