# SPDX-License-Identifier: Apache-2.0
"""Convert session messages to and from the plain objects of wire.session. Pure; any thread."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from diagnostic_msgs.msg import KeyValue
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from rclpy.publisher import Publisher

from lerobot_serve.ros import qos
from lerobot_serve.wire.names import is_printable, is_reply_topic, REPLY_TOPIC_FORMS
from lerobot_serve.wire.schema import ID_LIMIT, KEY_LIMIT, Refusal, TASK_LIMIT
from lerobot_serve.wire.session import (
    CameraSpec,
    SESSION_EXTENSION_BYTES_LIMIT,
    SESSION_EXTENSIONS_LIMIT,
    SessionRefused,
    SessionRequest,
    TAG_KEY_LIMIT,
    TAG_VALUE_LIMIT,
    TAGS_LIMIT,
)
from lerobot_serve_interfaces.msg import ActionChunk, DropCount, Extension
from lerobot_serve_interfaces.msg import CameraSpec as CameraMessage
from lerobot_serve_interfaces.srv import OpenSession

# number of state, action or camera names; each name has at most ID_LIMIT bytes
NAMES_LIMIT = 1024
TEXT_LIMITS = {
    'client_id': ID_LIMIT,
    'robot_type': ID_LIMIT,
    'reply_topic': 256,
    'policy': 256,
    'task': TASK_LIMIT,
}
CHUNK_TYPE = 'lerobot_serve_interfaces/msg/ActionChunk'
# reply topic for robots with an unknown session, which have no reply topic
NO_SESSION_TOPIC = 'no_session'
NO_EVENTS = PublisherEventCallbacks(use_default_callbacks=False)


def session_request_from_message(message: OpenSession.Request) -> SessionRequest:
    """
    Return the plain form. Raises SessionRefused.

    Checks what the middleware does not: bounds, and invalid UTF-8 (rclpy replaces it, so that two
    names could collide).
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
    return SessionRequest(
        message.client_id,
        message.instance,
        message.session_epoch,
        message.reply_topic,
        tuple(message.state_names),
        tuple(message.action_names),
        tuple(CameraSpec(c.name, c.height, c.width, c.channels) for c in message.cameras),
        message.fps,
        message.schema_version,
        message.robot_type,
        message.policy,
        message.task,
        message.wants_rtc,
        message.rtc_execution_horizon,
        message.codec,
        message.reply_deadline_s,
        read_tags(message.tags),
        read_extensions(message.extensions),
    )


def check_text(field: str, text: str, limit: int) -> None:
    """Raise SessionRefused for a text over its bound or with invalid UTF-8."""
    if len(text.encode('utf-8', 'replace')) > limit:
        raise SessionRefused(
            Refusal.BAD_NAME, f'{field} has {len(text)} characters, at most {limit} are allowed'
        )
    if '\ufffd' in text:
        raise SessionRefused(Refusal.BAD_NAME, f'{field} is not UTF-8')


def read_tags(messages: list[KeyValue]) -> tuple[tuple[str, str], ...]:
    """Return key and value of each tag. Raises SessionRefused for unprintable or long tags."""
    tags = tuple((message.key, message.value) for message in messages)
    if len(tags) > TAGS_LIMIT:
        raise SessionRefused(
            Refusal.BAD_REQUEST, f'tags has {len(tags)} entries, {TAGS_LIMIT} are allowed'
        )
    for key, value in tags:
        if not (is_printable(key, TAG_KEY_LIMIT) and is_printable(value, TAG_VALUE_LIMIT)):
            raise SessionRefused(
                Refusal.BAD_REQUEST,
                f'a tag must be printable, its key at most {TAG_KEY_LIMIT} bytes and its value '
                f'{TAG_VALUE_LIMIT}, got {key[:80]!r}: {value[:80]!r}',
            )
    return tags


def read_extensions(messages: list[Extension]) -> tuple[tuple[str, bytes], ...]:
    """Return key and bytes of each extension. Raises SessionRefused beyond the limits."""
    if len(messages) > SESSION_EXTENSIONS_LIMIT:
        raise SessionRefused(
            Refusal.BAD_REQUEST,
            f'extensions has {len(messages)} entries, {SESSION_EXTENSIONS_LIMIT} are allowed; '
            'send fewer',
        )
    for message in messages:
        key, size = message.key, len(message.value)
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
    return tuple((message.key, bytes(message.value)) for message in messages)


def message_from_session_request(session_request: SessionRequest) -> OpenSession.Request:
    """Return the request message of OpenSession."""
    return OpenSession.Request(
        client_id=session_request.client_id,
        instance=session_request.instance,
        session_epoch=session_request.session_epoch,
        reply_topic=session_request.reply_topic,
        state_names=list(session_request.state_names),
        action_names=list(session_request.action_names),
        cameras=camera_messages(session_request.cameras),
        fps=float(session_request.fps),
        schema_version=session_request.schema_version,
        robot_type=session_request.robot_type,
        policy=session_request.policy,
        task=session_request.task,
        wants_rtc=session_request.wants_rtc,
        rtc_execution_horizon=session_request.rtc_execution_horizon,
        codec=int(session_request.codec),
        reply_deadline_s=float(session_request.reply_deadline_s),
        tags=[KeyValue(key=key, value=value) for key, value in session_request.tags],
        extensions=[
            Extension(key=key, value=array('B', value))
            for key, value in session_request.extensions
        ],
    )


def check_topic_type(node: Node, topic: str) -> None:
    """Raise SessionRefused for a topic that another process uses with another type."""
    ends = (
        *node.get_publishers_info_by_topic(topic),
        *node.get_subscriptions_info_by_topic(topic),
    )
    others = sorted({end.topic_type for end in ends} - {CHUNK_TYPE})
    if others:
        raise SessionRefused(
            Refusal.BAD_NAME,
            f'reply_topic {topic!r} has the type {", ".join(others)}; use a topic of your own',
        )


def camera_messages(cameras: Iterable) -> list[CameraMessage]:
    """Return a message for each object with name, height, width and channels."""
    return [
        CameraMessage(name=c.name, height=c.height, width=c.width, channels=c.channels)
        for c in cameras
    ]


def drop_count_messages(drops: dict[str, int]) -> list[DropCount]:
    return [DropCount(reason=reason, count=count) for reason, count in sorted(drops.items())]


def create_reply_publisher(node: Node, topic: str) -> Publisher:
    """
    Return a publisher of chunks on the reply topic of a client. Raises SessionRefused.

    It has no incompatible-QoS event: an executor checks every such event each time it wakes, and a
    fleet has hundreds of these topics. An incompatible client shows as a topic without subscriber.
    """
    if not is_reply_topic(topic):
        raise SessionRefused(
            Refusal.BAD_NAME,
            f'reply_topic must be the full name of a ROS topic, {REPLY_TOPIC_FORMS}; got '
            f'{topic[:80]!r}',
        )
    check_topic_type(node, topic)
    try:
        return node.create_publisher(
            ActionChunk, topic, qos.ACTION_CHUNK, event_callbacks=NO_EVENTS
        )
    except Exception as error:
        # any error of rcl, for example a topic that has another type in this process
        raise SessionRefused(
            Refusal.BAD_NAME, f'reply_topic {topic!r} cannot carry chunks: {error}'
        ) from error
