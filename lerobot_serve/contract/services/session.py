# SPDX-License-Identifier: Apache-2.0
"""Checks of a session request, and the errors that reject it."""

from __future__ import annotations

from collections.abc import Iterable

from lerobot_serve.contract.names import is_reply_key, REPLY_TOPIC_FORMS
from lerobot_serve.contract.records import Extension, OpenSessionRequest
from lerobot_serve.contract.schema import Refusal

# limits of a session request: many sessions are kept for long
SESSION_EXTENSIONS_LIMIT = 64
SESSION_EXTENSION_BYTES_LIMIT = 1 << 16
# epochs count on, and begin again at 0; a client opens a few sessions while an older one is kept
EPOCHS, REMEMBERED_EPOCHS = 2**32, 1024
TAGS_LIMIT, TAG_KEY_LIMIT, TAG_VALUE_LIMIT = 16, 64, 128


class SessionRefused(Exception):
    """Session rejected; `code` for programs, the text has the requested and the served value."""

    def __init__(self, code: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ServerUnreachable(Exception):
    """The server did not respond; it may later."""


def format_tags(session_request: OpenSessionRequest) -> str:
    """Return the tags as one text for logs and traces."""
    return ', '.join(f'{tag.key}={tag.value}' for tag in session_request.tags)


def extension_bytes(extensions: Iterable[Extension], key: str) -> bytes | None:
    """Return the content of the extension with this key, None without one."""
    value = {each.key: each.value for each in extensions}.get(key)
    return None if value is None else bytes(value)


def aspect_ratio_warning(name: str, given: tuple[int, int], wanted: tuple[int, int]) -> str:
    """
    Return a warning for a camera with another aspect ratio than in training, empty for none.

    Both sizes are height and width, 0 where unknown.
    """
    (height, width), (wanted_height, wanted_width) = given, wanted
    if not (height and wanted_height) or height * wanted_width == width * wanted_height:
        return ''
    return (
        f'camera {name}: {height}x{width} on the robot, {wanted_height}x{wanted_width} in '
        'training; the aspect ratio differs, so the image is stretched'
    )


def check_ros_reply_topic(session_request: OpenSessionRequest) -> None:
    """
    Raise SessionRefused for a Zenoh key as the reply topic of a session over ROS 2: only Zenoh
    knows whose key it is.
    """
    if is_reply_key(session_request.reply_topic):
        raise SessionRefused(
            Refusal.BAD_NAME,
            f'reply_topic {session_request.reply_topic!r} is a Zenoh key, and this session is '
            f'opened over ROS 2; give the full name of a ROS topic, {REPLY_TOPIC_FORMS}, or open '
            'the session over Zenoh',
        )


def is_older(request: OpenSessionRequest, known: OpenSessionRequest) -> bool:
    """
    Return whether a session of the same client is older. Each has the next epoch, or, in a gateway
    whose caller came back, any.
    """
    steps_back = (known.session_epoch - request.session_epoch) % EPOCHS
    return request.instance == known.instance and 0 < steps_back <= REMEMBERED_EPOCHS


def check_client_id_is_free(
    known: OpenSessionRequest, session_request: OpenSessionRequest, silent_ns: int, grace_ns: int
) -> None:
    """
    Raise SessionRefused when another robot with this client_id sent a message less than `grace_ns`
    ago, `silent_ns` is the time since its last message, or when this robot has opened a newer
    session since: over another router, or with a request that was faster.
    """
    if is_older(session_request, known):
        raise SessionRefused(
            Refusal.NAME_IN_USE,
            f'client_id {session_request.client_id!r} has opened a newer session, epoch '
            f'{known.session_epoch}; that of epoch {session_request.session_epoch} is over',
        )
    if known.instance != session_request.instance and silent_ns < grace_ns:
        raise SessionRefused(
            Refusal.NAME_IN_USE,
            f'client_id {session_request.client_id!r} is in use by another robot, active '
            f'{silent_ns / 1e9:.1f} s ago; give each robot its own client_id, or retry after '
            f'{grace_ns / 1e9:g} s',
        )
