# SPDX-License-Identifier: Apache-2.0
"""What a robot asks, as a message and back: nothing is lost, and what is too much is refused."""

from __future__ import annotations

from array import array

from diagnostic_msgs.msg import KeyValue
import pytest
from rclpy.serialization import deserialize_message, serialize_message

from lerobot_serve.contract import records
from lerobot_serve.contract.limits import KEY_LIMIT
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import (
    SESSION_EXTENSION_BYTES_LIMIT,
    SESSION_EXTENSIONS_LIMIT,
    SessionRefused,
)
from lerobot_serve.ros.contract.session_messages import (
    message_of,
    session_request_from_message,
)
from lerobot_serve_interfaces.msg import Extension
from lerobot_serve_interfaces.srv import OpenSession

ASK = OpenSessionRequest(
    schema_version=1,
    client_id='robot_1',
    instance=7,
    session_epoch=3,
    reply_topic='/robot_1/action_chunk',
    state_names=('a', 'b'),
    action_names=('c',),
    cameras=(CameraSpec('front', 480, 640, 3),),
    fps=30.0,
    robot_type='arm',
    policy='act@1',
    task='fold',
    wants_rtc=True,
    rtc_execution_horizon=8,
    codec=2,
    reply_deadline_s=0.5,
    tags=(records.KeyValue('shift', 'night'), records.KeyValue('lab', 'B 3')),
    extensions=(
        records.Extension('vendor.force', bytes(range(256))),
        records.Extension('vendor.none'),
    ),
)


def extended(*extensions: tuple[str, bytes]) -> OpenSession.Request:
    messages = [Extension(key=key, value=array('B', value)) for key, value in extensions]
    return OpenSession.Request(extensions=messages)


def test_what_is_asked_arrives():
    raw = serialize_message(message_of(ASK, OpenSession.Request))
    assert session_request_from_message(deserialize_message(raw, OpenSession.Request)) == ASK


def test_as_much_as_is_allowed_is_taken():
    full = 'k' * KEY_LIMIT, b'x' * SESSION_EXTENSION_BYTES_LIMIT
    asked = session_request_from_message(extended(*[full] * SESSION_EXTENSIONS_LIMIT))
    assert asked.extensions == (records.Extension(*full),) * SESSION_EXTENSIONS_LIMIT


REFUSED = {
    'too many': ([('key', b'')] * (SESSION_EXTENSIONS_LIMIT + 1), '65 entries, 64 are allowed'),
    'too long': (
        [('key', b'x' * (SESSION_EXTENSION_BYTES_LIMIT + 1))],
        "'key' has 65537 bytes, 65536 are allowed",
    ),
    'a key that is too long': ([('k' * (KEY_LIMIT + 1), b'')], 'at most 64 bytes'),
    'a key that was not UTF-8': ([('a\ufffd', b'')], 'must be UTF-8'),
}


@pytest.mark.parametrize(('extensions', 'words'), REFUSED.values(), ids=REFUSED)
def test_more_than_a_session_may_keep_is_refused(extensions, words):
    request = OpenSession.Request()
    # rclpy checks the bound of a key where it is set, not where it arrives
    request._extensions = [_unchecked(*extension) for extension in extensions]
    with pytest.raises(SessionRefused, match=words) as refused:
        session_request_from_message(request)
    assert refused.value.code == Refusal.BAD_REQUEST


def _unchecked(key: str, value: bytes) -> Extension:
    message = Extension(value=array('B', value))
    message._key = key
    return message


@pytest.mark.parametrize(
    ('tags', 'words'),
    [
        ([('a', 'b')] * 17, 'tags has 17 entries, 16 are allowed'),
        ([('shift', 'night\n[ERROR] forged')], r"'night\n[ERROR] forged'"),
        ([('k' * 65, 'v')], 'its key at most 64 bytes'),
        ([('k', 'v' * 129)], 'its value 128'),
    ],
)
def test_labels_that_no_log_line_can_hold_are_refused(tags, words):
    request = OpenSession.Request(tags=[KeyValue(key=key, value=value) for key, value in tags])
    with pytest.raises(SessionRefused) as refused:
        session_request_from_message(request)
    assert words in str(refused.value)
