"""Session messages <-> the plain objects of wire.session. Pure functions; any thread."""

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

# names of values, of actions or of cameras; each has at most ID_LIMIT bytes
NAMES_LIMIT = 1024
TEXT_LIMITS = {
    'client_id': ID_LIMIT,
    'robot_type': ID_LIMIT,
    'reply_topic': 256,
    'policy': 256,
    'task': TASK_LIMIT,
}
CHUNK_TYPE = 'lerobot_serve_interfaces/msg/ActionChunk'
# where a server answers robots whose session it does not know; they have no topic there
NO_SESSION_TOPIC = 'no_session'
NO_EVENTS = PublisherEventCallbacks(use_default_callbacks=False)


def session_request_from_message(request: OpenSession.Request) -> SessionRequest:
    """
    Return the plain form. Raises Refused.

    Checks what the middleware does not: bounds, and bytes that were no UTF-8 (rclpy turns them
    into replacement characters, under which two names could become one).
    """
    for field, limit in TEXT_LIMITS.items():
        check_text(field, getattr(request, field), limit)
    names = {
        'state_names': request.state_names,
        'action_names': request.action_names,
        'cameras': [camera.name for camera in request.cameras],
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
        request.client_id,
        request.instance,
        request.session_epoch,
        request.reply_topic,
        tuple(request.state_names),
        tuple(request.action_names),
        tuple(CameraSpec(c.name, c.height, c.width, c.channels) for c in request.cameras),
        request.fps,
        request.schema_version,
        request.robot_type,
        request.policy,
        request.task,
        request.wants_rtc,
        request.rtc_execution_horizon,
        request.codec,
        request.answer_within_s,
        read_tags(request.tags),
        read_extensions(request.extensions),
    )


def check_text(field: str, text: str, limit: int) -> None:
    """Raise Refused for a text over its bound, or that was no UTF-8."""
    if len(text.encode('utf-8', 'replace')) > limit:
        raise SessionRefused(
            Refusal.BAD_NAME, f'{field} has {len(text)} characters, {limit} are allowed'
        )
    if '\ufffd' in text:
        raise SessionRefused(Refusal.BAD_NAME, f'{field} is not UTF-8')


def read_tags(messages: list[KeyValue]) -> tuple[tuple[str, str], ...]:
    """Return key and value of each label. Raises Refused for what a log line cannot hold."""
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
    """Return key and bytes of each. Raises Refused for more than a session may keep."""
    if len(messages) > SESSION_EXTENSIONS_LIMIT:
        raise SessionRefused(
            Refusal.BAD_REQUEST,
            f'extensions has {len(messages)} entries, {SESSION_EXTENSIONS_LIMIT} are allowed; send '
            'fewer',
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
                f'extension {key!r} has {size} bytes, {SESSION_EXTENSION_BYTES_LIMIT} are allowed; '
                'send less',
            )
    return tuple((message.key, bytes(message.value)) for message in messages)


def message_from_session_request(ask: SessionRequest) -> OpenSession.Request:
    """Return the message."""
    return OpenSession.Request(
        client_id=ask.client_id,
        instance=ask.instance,
        session_epoch=ask.session_epoch,
        reply_topic=ask.reply_topic,
        state_names=list(ask.state_names),
        action_names=list(ask.action_names),
        cameras=camera_messages(ask.cameras),
        fps=float(ask.fps),
        schema_version=ask.schema_version,
        robot_type=ask.robot_type,
        policy=ask.policy,
        task=ask.task,
        wants_rtc=ask.wants_rtc,
        rtc_execution_horizon=ask.rtc_execution_horizon,
        codec=int(ask.codec),
        answer_within_s=float(ask.answer_within_s),
        tags=[KeyValue(key=key, value=value) for key, value in ask.tags],
        extensions=[Extension(key=key, value=array('B', value)) for key, value in ask.extensions],
    )


def check_topic_type(node: Node, topic: str) -> None:
    """Raise Refused for a topic on which another process sends or awaits something else."""
    ends = (
        *node.get_publishers_info_by_topic(topic),
        *node.get_subscriptions_info_by_topic(topic),
    )
    others = sorted({end.topic_type for end in ends} - {CHUNK_TYPE})
    if others:
        raise SessionRefused(
            Refusal.BAD_NAME,
            f'reply_topic {topic!r} carries {", ".join(others)}; chunks are not sent there: '
            'listen on a topic of your own',
        )


def camera_messages(cameras: Iterable) -> list[CameraMessage]:
    """Return messages of anything with name, height, width and channels."""
    return [
        CameraMessage(name=c.name, height=c.height, width=c.width, channels=c.channels)
        for c in cameras
    ]


def drop_count_messages(drops: dict[str, int]) -> list[DropCount]:
    return [DropCount(reason=reason, count=count) for reason, count in sorted(drops.items())]


def create_reply_publisher(node: Node, topic: str) -> Publisher:
    """
    Return a publisher of chunks on a topic that a client named. Raises Refused.

    It has none of rclpy's warnings of readers that do not fit: an executor looks at every such
    event each time it wakes, and a fleet has hundreds of these topics. Who does not fit is found
    to have no listener.
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
        # whatever rcl dislikes, for example a topic that carries another type here
        raise SessionRefused(
            Refusal.BAD_NAME, f'reply_topic {topic!r} cannot carry chunks: {error}'
        ) from error
