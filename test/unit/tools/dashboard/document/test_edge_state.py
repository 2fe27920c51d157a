# SPDX-License-Identifier: Apache-2.0
"""The bytes of EdgeState are read as rclpy reads them."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.ros.contract.service_bytes import encode
from lerobot_serve.tools.dashboard.robot.edge_state import EdgeStateReader
from lerobot_serve_interfaces.msg import DropCount, EdgeState

NODE = '/robot_7/edge_controller'
MARK_S = 12345.5
TEXTS = st.sampled_from(['', 'a', 'ab', 'abc', 'robot_7', 'ü€', '<script>\n', 'x' * 16])
FLOATS = st.floats(width=32, allow_nan=False)
STATES = st.builds(
    EdgeState,
    client_id=TEXTS,
    server=TEXTS,
    episode_id=TEXTS,
    task=TEXTS,
    slot=TEXTS,
    policy=TEXTS,
    reason=TEXTS,
    state=st.integers(0, 7),
    rung=st.integers(0, 9),
    paused=st.booleans(),
    queue_remaining_s=FLOATS,
    action_age_s=FLOATS,
    round_trip_ms=FLOATS,
    network_ms=FLOATS,
    stalls=st.integers(0, 2**64 - 1),
    cage_trips=st.integers(0, 2**64 - 1),
    dropped=st.lists(st.builds(DropCount, reason=TEXTS, count=st.integers(0, 9)), max_size=2),
)
NAMES = (
    *('client_id', 'server', 'episode_id', 'task', 'slot', 'policy', 'reason'),
    *('state', 'rung', 'paused', 'intervention', 'stalls', 'cage_trips'),
)


def check(reader: EdgeStateReader, message: EdgeState) -> None:
    sample = reader.read(encode(message))
    assert sample.robot.node == NODE
    for name in NAMES:
        assert getattr(sample.robot.edge, name) == getattr(message, name), name
    assert sample[1:] == (
        message.queue_remaining_s,
        message.action_age_s,
        message.round_trip_ms,
        message.network_ms,
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(STATES, min_size=1, max_size=4))
def test_a_reader_reads_what_rclpy_reads_whatever_came_before(messages):
    reader = EdgeStateReader(NODE)
    for message in messages:
        check(reader, message)
        # again: by the texts of the one before
        check(reader, message)


def test_a_view_is_the_same_object_until_a_text_or_a_count_changes():
    reader, message = EdgeStateReader(NODE), EdgeState(client_id='robot_7', stalls=1)
    message.queue_remaining_s = MARK_S
    remaining_s = iter(range(9))

    def view(raw: bytes) -> object:
        # in place: two encodings of one message may differ in the bytes between the fields
        number = struct.pack('<f', MARK_S)
        assert raw.count(number) == 1
        return reader.read(raw.replace(number, struct.pack('<f', next(remaining_s)))).robot

    raw = encode(message)
    first = view(raw)
    assert view(raw) is first
    message.stalls = 2
    raw = encode(message)
    second = view(raw)
    assert second is not first and view(raw) is second
    message.reason = 'late'
    assert view(encode(message)) is not second


def test_bytes_that_are_no_state_are_refused_at_every_length():
    whole = encode(EdgeState(client_id='robot_7', reason='why'))
    needed = len(whole) - 4
    for size in range(needed - 56, needed):
        reader = EdgeStateReader(NODE)
        # with texts of a message before, and without
        with pytest.raises(Malformed):
            reader.read(whole[:size][: needed - 8])
        reader.read(whole)
    with pytest.raises(Malformed):
        EdgeStateReader(NODE).read(b'')


def test_a_text_beyond_its_bound_is_refused():
    message = EdgeState()
    message._reason = 'x' * 200_000
    with pytest.raises(Malformed):
        EdgeStateReader(NODE).read(encode(message))
