"""What a client asks for when it opens a session, and the ways in which that is refused."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.wire.schema import Codec, Refusal, SCHEMA_VERSION

# of an ask: many sessions are remembered for long
SESSION_EXTENSIONS_LIMIT = 64
SESSION_EXTENSION_BYTES_LIMIT = 1 << 16
TAGS_LIMIT, TAG_KEY_LIMIT, TAG_VALUE_LIMIT = 16, 64, 128


class SessionRefused(Exception):
    """No session; `code` for machines, the text for people: what was asked, what is served."""

    def __init__(self, code: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ServerUnreachable(Exception):
    """The server did not answer; it may later."""


@dataclass(frozen=True, slots=True)
class CameraSpec:
    """A camera as a robot has it or as a policy wants it; 0 means any size."""

    name: str
    height: int = 0
    width: int = 0
    channels: int = 3


@dataclass(frozen=True, slots=True)
class SessionRequest:
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
    # labels for logs and traces, which change nothing; key and value of each
    tags: tuple[tuple[str, str], ...] = ()
    # key and bytes of each; who does not know a key passes it on or ignores it
    extensions: tuple[tuple[str, bytes], ...] = ()


def format_tags(ask: SessionRequest) -> str:
    """Return the labels of a robot as logs and traces show them."""
    return ', '.join(f'{key}={value}' for key, value in ask.tags)


def aspect_ratio_warning(name: str, given: tuple[int, int], wanted: tuple[int, int]) -> str:
    """
    Return what an operator should know of a camera of another aspect ratio than in training.

    Both are height and width, 0 where unknown; the text is empty where there is nothing to say.
    """
    (height, width), (wanted_height, wanted_width) = given, wanted
    if not (height and wanted_height) or height * wanted_width == width * wanted_height:
        return ''
    return (
        f'{name} is {height}x{width} on the robot and was {wanted_height}x{wanted_width} in '
        'training: the picture will be stretched'
    )


def check_client_id_is_free(
    known: SessionRequest, ask: SessionRequest, silent_ns: int, grace_ns: int
) -> None:
    """
    Raise Refused when the open session of this name is another robot's that was heard less than
    `grace_ns` ago; `silent_ns` is how long ago it was.
    """
    if known.instance != ask.instance and silent_ns < grace_ns:
        raise SessionRefused(
            Refusal.NAME_IN_USE,
            f'another robot called {ask.client_id!r} was heard {silent_ns / 1e9:.1f} s ago; '
            f'give each robot its own client_id, or try again after {grace_ns / 1e9:g} s',
        )
