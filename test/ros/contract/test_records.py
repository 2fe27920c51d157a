# SPDX-License-Identifier: Apache-2.0
"""The classes of `contract.records` have the fields and the bytes of ROS, message by message."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import msgspec
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from support.contract import golden
from support.contract.cdr_walk import Walk

from lerobot_serve.contract import records
from lerobot_serve.contract.codec import decode, encode
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.types import Constants

KINDS = golden.message_types()


def record_of(name: str) -> Any:
    return getattr(records, name.replace('_', ''))


def check_equal(mine: Any, theirs: Any, place: str) -> None:
    """Compare every field of a record with that of a message, nested ones included."""
    if isinstance(mine, msgspec.Struct):
        kinds = theirs.get_fields_and_field_types()
        assert list(mine.__struct_fields__) == list(kinds), place
        for name, kind in kinds.items():
            value = getattr(mine, name)
            assert isinstance(value, bool) is (kind == 'boolean'), f'{place}.{name}'
            check_equal(value, getattr(theirs, name), f'{place}.{name}')
    elif isinstance(mine, tuple):
        for one, other in zip(mine, theirs, strict=True):
            check_equal(one, other, f'{place}[]')
    else:
        value = np.frombuffer(mine, np.uint8) if isinstance(mine, bytes) else mine
        assert np.array_equal(value, theirs), place


@pytest.mark.parametrize('name', KINDS)
@pytest.mark.parametrize('first', [1, 20])
def test_a_message_has_the_fields_and_the_bytes_of_ros(name, first):
    message = golden.filled(KINDS[name], first)
    walk = Walk(message)
    written = bytes(serialize_message(message))
    found = decode(record_of(name), written)
    check_equal(found, message, name)
    # padding apart, and what the middleware appends
    assert encode(found) == walk.masked(written) == walk.data
    if first == 1:
        assert encode(found) == golden.read(name)


@pytest.mark.parametrize('name', KINDS)
def test_a_new_message_is_that_of_ros(name):
    message = KINDS[name]()
    found = record_of(name)()
    check_equal(found, message, name)
    assert encode(found) == Walk(message).data


@pytest.mark.parametrize('name', KINDS)
def test_constants_are_those_of_ros(name):
    kind, mine = record_of(name), KINDS[name]
    theirs = vars(type(mine))['_Metaclass_' + mine.__name__ + '__constants']
    groups = [group for group in vars(kind).values() if isinstance(group, type)]
    found = sorted((member.value, member.name) for group in groups for member in group)
    assert [value for value, _ in found] == sorted(theirs.values())
    for value, name in found:
        assert value in (theirs.get(key) for key in theirs if key.endswith(name)), name


@pytest.mark.parametrize('name', KINDS)
def test_each_end_of_a_message_is_needed(name):
    raw = golden.read(name)
    old = len(raw) - 8 if name == 'RoutingDecision' else -1
    for size in range(len(raw)):
        if not old - 3 <= size <= old + 3:
            with pytest.raises(Malformed):
                decode(record_of(name), raw[:size])


def test_a_decision_of_an_older_version_has_no_version_of_the_split():
    raw = encode(decode(records.RoutingDecision, golden.read('RoutingDecision')))
    old = raw[:-8]
    assert decode(records.RoutingDecision, old).split_version == 0
    assert decode(records.RoutingDecision, raw).split_version


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_changed_bytes_are_a_message_or_refused(name, data):
    raw = bytearray(golden.read(name))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(record_of(name), bytes(raw))
    except Malformed:
        return
    encode(found)


@pytest.mark.parametrize(
    ('record', 'words'),
    [
        (records.DropCount('x' * 65), 'reason: .* has 65 bytes, at most 64'),
        (records.DropCount('x', -1), 'count: -1 does not fit'),
        (records.Time(2**31), 'sec: 2147483648 does not fit'),
        (records.EdgeState(client_id='a\0b'), 'client_id: .*NUL'),
        (records.EdgeState(dropped=(records.DropCount(),) * 4097), 'dropped: 4097 entries'),
        (records.PolicyVersion(sources=('x',) * 9), 'sources: 9 entries, at most 8'),
        (records.PolicyVersion(sources=('x' * 513,)), 'sources: .* has 513 bytes, at most 512'),
        (records.Extension('k', bytes(2**20 + 1)), 'value: 1048577 entries'),
    ],
)
def test_a_value_beyond_its_limit_is_refused_with_its_field(record, words):
    with pytest.raises(Unencodable, match=words):
        encode(record)


def test_a_text_beyond_its_limit_is_refused_with_its_field():
    raw = encode(records.VersionFile(path='x' * 65))
    with pytest.raises(Malformed, match='reason: 66 entries, at most 65'):
        decode(records.DropCount, raw)


def test_a_constant_of_a_newer_version_has_a_name():
    state = records.EdgeState.State(200)
    assert isinstance(state, Constants)
    assert (state, state.name, state.word) == (200, 'unknown (200)', 'unknown (200)')
    assert records.EdgeState.State.DEAD.word == 'dead'
    with pytest.raises(ValueError, match='256'):
        records.EdgeState.State(256)


def test_arrays_of_a_decoded_message_are_views_of_its_bytes():
    observation = decode(records.Observation, golden.read('Observation'))
    for values in (observation.state, observation.prefix_robot.data, observation.images[0].data):
        assert not values.flags.owndata
        assert not values.flags.writeable
