"""What a client asks for when it opens a session, and the ways in which that is refused."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.wire.schema import Codec, Refusal, SCHEMA_VERSION

# of an ask: many sessions are remembered for long
ASK_EXTENSIONS_LIMIT = 64
ASK_EXTENSION_BYTES_LIMIT = 1 << 16


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
    # key and bytes of each; who does not know a key passes it on or ignores it
    extensions: tuple[tuple[str, bytes], ...] = ()


def check_name_is_free(known: SessionAsk, ask: SessionAsk, silent_ns: int, grace_ns: int) -> None:
    """
    Raise Refused when the open session of this name is another robot's that was heard less than
    `grace_ns` ago; `silent_ns` is how long ago it was.
    """
    if known.instance != ask.instance and silent_ns < grace_ns:
        raise Refused(
            Refusal.NAME_IN_USE,
            f'another robot called {ask.client_id!r} was heard {silent_ns / 1e9:.1f} s ago; '
            f'give each robot its own client_id, or try again after {grace_ns / 1e9:g} s',
        )
