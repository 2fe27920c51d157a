# SPDX-License-Identifier: Apache-2.0
"""Records as messages of ROS 2 and back, and checks of a session request. Pure; any thread."""

from __future__ import annotations

from typing import Any, TypeVar

from diagnostic_msgs.msg import KeyValue
from msgspec import Struct
from msgspec.structs import replace
from rclpy.serialization import deserialize_message, serialize_message

from lerobot_serve.contract.codec import decode, encode
from lerobot_serve.contract.limits import ID_LIMIT, KEY_LIMIT, TASK_LIMIT
from lerobot_serve.contract.names import is_printable
from lerobot_serve.contract.records import Extension, OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import (
    SESSION_EXTENSION_BYTES_LIMIT,
    SESSION_EXTENSIONS_LIMIT,
    SessionRefused,
    TAG_KEY_LIMIT,
    TAG_VALUE_LIMIT,
    TAGS_LIMIT,
)
from lerobot_serve_interfaces.msg import Extension as ExtensionMessage
from lerobot_serve_interfaces.srv import OpenSession

M = TypeVar('M')
R = TypeVar('R')
# number of state, action or camera names; each name has at most ID_LIMIT bytes
NAMES_LIMIT = 1024
TEXT_LIMITS = {
    'client_id': ID_LIMIT,
    'robot_type': ID_LIMIT,
    'reply_topic': 256,
    'policy': 256,
    'task': TASK_LIMIT,
}
# topic of the replies to robots with an unknown session, which have no reply topic
NO_SESSION_TOPIC = 'no_session'


def session_request_from_message(message: OpenSession.Request) -> OpenSessionRequest:
    """
    Return the record. Raises SessionRefused.

    Checks bounds and UTF-8, which the middleware does not: rclpy replaces invalid UTF-8, so that
    two names could collide.
    """
    for field, limit in TEXT_LIMITS.items():
        check_text(field, getattr(message, field), limit)
    names = {
        'state_names': message.state_names,
        'action_names': message.action_names,
        'cameras': [camera.name for camera in message.cameras],
    }
    for field, texts in names.items():
        if len(texts) > NAMES_LIMIT:
            raise SessionRefused(
                Refusal.BAD_NAME,
                f'{field} has {len(texts)} entries, {NAMES_LIMIT} are allowed; send fewer',
            )
        for text in texts:
            check_text(field, text, ID_LIMIT)
    check_tags(message.tags)
    check_extensions(message.extensions)
    request = record_of(message, OpenSessionRequest)
    # a session outlives the bytes of its request
    extensions = tuple(Extension(each.key, bytes(each.value)) for each in request.extensions)
    return replace(request, extensions=extensions)


def check_text(field: str, text: str, limit: int) -> None:
    """Raise SessionRefused for a text over its bound or with invalid UTF-8."""
    if len(text.encode('utf-8', 'replace')) > limit:
        raise SessionRefused(
            Refusal.BAD_NAME, f'{field} has {len(text)} characters, at most {limit} are allowed'
        )
    if '\ufffd' in text:
        raise SessionRefused(Refusal.BAD_NAME, f'{field} is not UTF-8')


def check_tags(tags: list[KeyValue]) -> None:
    """Raise SessionRefused for unprintable or long tags."""
    if len(tags) > TAGS_LIMIT:
        raise SessionRefused(
            Refusal.BAD_REQUEST, f'tags has {len(tags)} entries, {TAGS_LIMIT} are allowed'
        )
    for tag in tags:
        key, value = tag.key, tag.value
        if not (is_printable(key, TAG_KEY_LIMIT) and is_printable(value, TAG_VALUE_LIMIT)):
            raise SessionRefused(
                Refusal.BAD_REQUEST,
                f'a tag must be printable, its key at most {TAG_KEY_LIMIT} bytes and its value '
                f'{TAG_VALUE_LIMIT}, got {key[:80]!r}: {value[:80]!r}',
            )


def check_extensions(extensions: list[ExtensionMessage]) -> None:
    """Raise SessionRefused for extensions beyond the limits."""
    if len(extensions) > SESSION_EXTENSIONS_LIMIT:
        raise SessionRefused(
            Refusal.BAD_REQUEST,
            f'extensions has {len(extensions)} entries, {SESSION_EXTENSIONS_LIMIT} are allowed; '
            'send fewer',
        )
    for extension in extensions:
        key, size = extension.key, len(extension.value)
        if len(key.encode('utf-8', 'replace')) > KEY_LIMIT or '\ufffd' in key:
            raise SessionRefused(
                Refusal.BAD_REQUEST,
                f'the key {key[:80]!r} of an extension must be UTF-8 of at most {KEY_LIMIT} bytes',
            )
        if size > SESSION_EXTENSION_BYTES_LIMIT:
            raise SessionRefused(
                Refusal.BAD_REQUEST,
                f'extension {key!r} has {size} bytes, {SESSION_EXTENSION_BYTES_LIMIT} are '
                'allowed; send less',
            )


def message_of(record: Struct, kind: type[M]) -> M:
    """Return a record as a message of ROS 2. Raises Unencodable."""
    message: M = deserialize_message(encode(record), kind)
    return message


def record_of(message: Any, kind: type[R]) -> R:
    """Return a message of ROS 2 as a record. Raises Malformed."""
    return decode(kind, bytes(serialize_message(message)))
