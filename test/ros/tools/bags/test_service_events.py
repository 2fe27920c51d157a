# SPDX-License-Identifier: Apache-2.0
"""What a bag holds of the calls of OpenSession, as ROS 2 writes them."""

from __future__ import annotations

from contextlib import suppress

from diagnostic_msgs.msg import KeyValue
from hypothesis import given
from hypothesis import strategies as st
import pytest
from rclpy.serialization import serialize_message
from service_msgs.msg import ServiceEventInfo
from support.contract.wire_examples import patient, texts, uint

from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.tools.bags.message import OPEN_SESSION, read_open_session
from lerobot_serve.tools.bags.node import message_class, TopicFilter
from lerobot_serve_interfaces.msg import CameraSpec, Extension
from lerobot_serve_interfaces.srv import OpenSession

EVENTS = '/policy_server/open_session/_service_event'
names = st.lists(texts(), max_size=3)
requests = st.builds(
    OpenSession.Request,
    schema_version=uint(16),
    client_id=texts(),
    instance=uint(64),
    session_epoch=uint(32),
    reply_topic=texts(),
    robot_type=texts(),
    policy=texts(),
    fps=st.floats(width=32, allow_nan=False),
    state_names=names,
    action_names=names,
    cameras=st.lists(
        st.builds(CameraSpec, name=texts(), height=uint(32), width=uint(32), channels=uint(8)),
        max_size=3,
    ),
    task=texts(),
    wants_rtc=st.booleans(),
    rtc_execution_horizon=uint(32),
    codec=uint(8),
    tags=st.lists(st.builds(KeyValue, key=texts(), value=texts()), max_size=2),
    extensions=st.lists(st.builds(Extension, key=texts(8), value=st.binary()), max_size=2),
)


def event(kind: int, request: list, response: list | None = None) -> bytes:
    info = ServiceEventInfo(event_type=kind, sequence_number=-1)
    return serialize_message(
        OpenSession.Event(info=info, request=request, response=response or [])
    )


@patient
@given(requests)
def test_a_request_is_read_as_it_was_made(request):
    raw = event(ServiceEventInfo.REQUEST_RECEIVED, [request])
    read = read_open_session(raw)
    assert read
    fields = ('client_id', 'session_epoch', 'robot_type', 'task', 'rtc_execution_horizon', 'fps')
    assert [getattr(read, name) for name in fields] == [getattr(request, name) for name in fields]
    assert (read.state_names, read.action_names) == (
        tuple(request.state_names),
        tuple(request.action_names),
    )
    assert [(each.key, bytes(each.value)) for each in read.extensions] == [
        (each.key, bytes(each.value)) for each in request.extensions
    ]


def test_replies_and_what_a_client_tells_are_no_requests():
    asked, replied = [OpenSession.Request(client_id='a')], [OpenSession.Response()]
    assert read_open_session(event(ServiceEventInfo.RESPONSE_SENT, [], replied)) is None
    assert read_open_session(event(ServiceEventInfo.REQUEST_SENT, asked)) is None
    # a service that tells of its calls without their content
    assert read_open_session(event(ServiceEventInfo.REQUEST_RECEIVED, [])) is None


@patient
@given(requests, st.data())
def test_bytes_that_are_no_request_are_refused(request, data):
    raw = event(ServiceEventInfo.REQUEST_RECEIVED, [request])
    whole = read_open_session(raw)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with suppress(Malformed):
        # what is read stands before the tags
        assert encode(read_open_session(cut)) == encode(whole)
    with suppress(Malformed):
        read_open_session(data.draw(st.binary(max_size=len(raw))))


@pytest.mark.parametrize(
    ('wanted', 'taken'),
    [
        (TopicFilter(), [True, False, True, False, False]),
        (TopicFilter(all=True), [True, True, True, True, False]),
        (TopicFilter(frozenset([EVENTS])), [True, False, False, False, False]),
    ],
)
def test_calls_of_our_services_are_recorded(wanted, taken):
    offered = (
        (EVENTS, OPEN_SESSION),
        ('/a/b/_service_event', 'std_srvs/srv/Trigger_Event'),
        ('/a/status', 'lerobot_serve_interfaces/msg/ServerStatus'),
        ('/a/text', 'std_msgs/msg/String'),
        ('/a/_action/feedback', 'lerobot_serve_interfaces/action/PredictChunk_FeedbackMessage'),
    )
    assert [wanted.takes(*each) for each in offered] == taken


def test_the_class_of_a_topic():
    assert message_class(OPEN_SESSION) is OpenSession.Event
    assert message_class('lerobot_serve_interfaces/msg/CameraSpec') is CameraSpec
    for kind in ('a/msg/B', 'std_msgs/msg/Nothing', 'std_srvs/srv/Nothing_Event', 'nonsense'):
        with pytest.raises((ImportError, AttributeError, ValueError)):
            message_class(kind)
