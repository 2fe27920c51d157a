# SPDX-License-Identifier: Apache-2.0
"""The services in plain Python have the bytes of the middleware, field by field."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest
from rclpy.serialization import serialize_message
from support.wire import golden
from support.wire.cdr_walk import Walk

from lerobot_serve.ros.contract import service_bytes
from lerobot_serve.ros.contract.session_messages import session_request_from_message
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.message_parts import Extension
from lerobot_serve.wire.services import requests as services
from lerobot_serve.wire.services import responses as service_responses
from lerobot_serve.wire.services.session import CameraSpec, SessionRequest
from lerobot_serve_interfaces.msg import DropCount, ServerStatus
from lerobot_serve_interfaces.msg import Extension as ExtensionMessage

KINDS = golden.message_types()
RESPONSES = {
    'open_session': 'OpenSession_Response',
    'close_session': 'CloseSession_Response',
    'reset_episode': 'ResetEpisode_Response',
    'get_status': 'GetStatus_Response',
}
NAMES = st.lists(st.text(st.characters(exclude_characters='\0', codec='utf-8'), max_size=20))


def check_equal(mine: Any, theirs: Any, where: str = '') -> None:
    """Compare every field of a dataclass with that of a message, nested ones included."""
    kinds = theirs.get_fields_and_field_types()
    renamed = {'stamp_ns': 'stamp'}
    assert {renamed.get(each.name, each.name) for each in fields(mine)} == set(kinds), where
    for name in (each.name for each in fields(mine)):
        found, expected = getattr(mine, name), getattr(theirs, renamed.get(name, name))
        place = f'{where}.{name}'
        if name == 'stamp_ns':
            assert found == expected.sec * 10**9 + expected.nanosec, place
        elif isinstance(found, tuple):
            check_list(found, expected, place)
        elif is_dataclass(found):
            check_equal(found, expected, place)
        else:
            assert found == expected, place
            assert isinstance(found, bool) is (kinds[name] == 'boolean'), place


def check_list(found: tuple[Any, ...], expected: Any, place: str) -> None:
    assert len(found) == len(expected), place
    for mine, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, DropCount):
            assert mine == (theirs.reason, theirs.count), place
        elif isinstance(theirs, ExtensionMessage):
            assert (mine.key, bytes(mine.value)) == (theirs.key, bytes(theirs.value)), place
        elif isinstance(mine, CameraSpec):
            check_equal(mine, theirs, place)
        else:
            assert mine == theirs, place


@pytest.mark.parametrize(('service', 'name'), RESPONSES.items())
def test_golden_responses_are_read_field_by_field(service, name):
    message = golden.filled(KINDS[name])
    check_equal(services.decode(service, golden.read(name)), message)
    check_equal(services.decode(service, bytes(serialize_message(message))), message)


@pytest.mark.parametrize(('service', 'name'), RESPONSES.items())
def test_an_empty_response_is_read(service, name):
    check_equal(services.decode(service, bytes(serialize_message(KINDS[name]()))), KINDS[name]())


def test_the_golden_status_is_read():
    message = golden.filled(ServerStatus)
    check_equal(service_responses.read_status(golden.read('ServerStatus')), message)
    assert (
        service_responses.read_status(golden.read('ServerStatus')).memory_mb == message.memory_mb
    )


@pytest.mark.parametrize(('service', 'name'), RESPONSES.items())
def test_each_end_of_a_response_is_needed(service, name):
    raw = golden.read(name)
    for size in (0, 4, len(raw) // 2, len(raw) - 1):
        with pytest.raises(Malformed):
            services.decode(service, raw[:size])


def same_bytes(name: str, mine: bytes, message: Any) -> None:
    walk = Walk(message)
    assert walk.masked(mine) == walk.masked(bytes(serialize_message(message))), name


def test_golden_requests_are_written():
    opened = golden.filled(KINDS['OpenSession_Request'])
    written = services.open_request(session_request_from_message(opened))
    same_bytes('OpenSession_Request', written, opened)
    assert Walk(opened).masked(written) == Walk(opened).masked(golden.read('OpenSession_Request'))
    closed = golden.filled(KINDS['CloseSession_Request'])
    written = services.close_request(closed.client_id, closed.session_epoch)
    same_bytes('CloseSession_Request', written, closed)
    reset = golden.filled(KINDS['ResetEpisode_Request'])
    written = services.encode(
        services.ResetEpisodeRequest(
            reset.client_id, reset.session_epoch, reset.episode, reset.episode_id
        )
    )
    same_bytes('ResetEpisode_Request', written, reset)


@given(
    names=NAMES,
    task=st.text(st.characters(exclude_characters='\0', codec='utf-8'), max_size=30),
    tags=st.lists(st.tuples(st.text('abc', max_size=5), st.text('xyz', max_size=5)), max_size=3),
    data=st.lists(st.binary(max_size=5), max_size=3),
)
def test_any_session_request_is_written_as_the_middleware_does(names, task, tags, data):
    request = SessionRequest(
        'robot',
        2**63 + 1,
        7,
        '@lerobot/a/b/robot/c/00000007/action_chunk',
        tuple(names),
        tuple(reversed(names)),
        tuple(CameraSpec(name, 3, 4, 1) for name in names),
        29.97,
        task=task,
        wants_rtc=True,
        codec=2,
        reply_deadline_s=0.25,
        tags=tuple(tags),
        extensions=tuple((f'key.{at}', each) for at, each in enumerate(data)),
    )
    theirs = service_bytes.open_request(request)
    message = service_bytes.read_request('open_session', theirs)
    mine = services.open_request(request)
    walk = Walk(message)
    assert walk.masked(mine) == walk.masked(theirs)
    assert session_request_from_message(service_bytes.read_request('open_session', mine)) == (
        session_request_from_message(message)
    )


def test_extensions_are_views_with_a_key():
    (first, *_) = services.decode('open_session', golden.read('OpenSession_Response')).extensions
    assert isinstance(first, Extension) and first.key
