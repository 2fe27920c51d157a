# SPDX-License-Identifier: Apache-2.0
"""Every message has the bytes that were agreed on, in our eyes and in those of the middleware."""

from __future__ import annotations

import pytest
from rclpy.serialization import deserialize_message, serialize_message
from support.contract import golden
from support.contract.cdr_walk import Walk

KINDS = golden.message_types()
every_message = pytest.mark.parametrize('name', KINDS)


def leaves(message: object) -> list[object]:
    """Return the values of all fields, nested ones included."""
    found = []
    for name in message.get_fields_and_field_types():
        value = getattr(message, name)
        for item in value if hasattr(value, '__len__') and not isinstance(value, str) else [value]:
            nested = hasattr(item, 'get_fields_and_field_types')
            found += leaves(item) if nested else [item]
    return found


def test_every_message_has_golden_bytes_and_nothing_else_has():
    stored = {file.stem for file in golden.FOLDER.glob('*.hex')}
    assert stored == set(KINDS), golden.HOW


def test_services_and_actions_are_found_with_all_their_parts():
    assert {'Observation', 'OpenSession_Request', 'OpenSession_Response'} <= set(KINDS)
    assert {'RunEpisode_Goal', 'RunEpisode_Result', 'RunEpisode_Feedback'} <= set(KINDS)


@every_message
def test_the_contract_is_what_was_agreed(name):
    walk = Walk(golden.filled(KINDS[name]))
    changed = golden.difference(name, golden.read(name), walk, walk.data)
    assert not changed, changed


@every_message
def test_the_middleware_writes_the_golden_bytes(name):
    message = golden.filled(KINDS[name])
    walk = Walk(message)
    written = walk.masked(serialize_message(message))
    changed = golden.difference(name, golden.read(name), walk, written)
    assert not changed, changed


@every_message
def test_the_middleware_reads_the_golden_bytes(name):
    message = deserialize_message(golden.read(name), KINDS[name])
    walk = Walk(message)
    changed = golden.difference(name, golden.read(name), walk, walk.data)
    assert not changed, changed


@every_message
def test_no_example_holds_a_default(name):
    given = golden.filled(KINDS[name])
    assert all(leaves(given))
    assert len(leaves(given)) >= len(KINDS[name].get_fields_and_field_types())


@every_message
def test_examples_tell_all_fields_of_a_message_apart(name):
    values = [v for v in leaves(golden.filled(KINDS[name])) if v is not True]
    chosen = set(golden.SENSIBLE.values())
    free = [v for v in values if v not in chosen]
    assert len(free) == len(set(free))


@every_message
def test_a_changed_byte_is_noticed_wherever_it_is(name):
    walk = Walk(golden.filled(KINDS[name]))
    data = walk.data
    for at in range(len(data)):
        altered = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert f'byte {at}, ' in golden.difference(name, altered, walk, walk.data)


def test_a_removed_field_is_noticed():
    walk = Walk(golden.filled(KINDS['DropCount']))
    without = golden.difference('DropCount', walk.data, walk, walk.data[:-8])
    assert 'in or before count' in without
    assert 'is absent' in without


def test_the_reason_names_the_field_and_the_remedy():
    walk = Walk(golden.filled(KINDS['Observation'], first=2))
    text = golden.difference('Observation', golden.read('Observation'), walk, walk.data)
    assert 'header.seq' in text
    assert '--write' in text


def test_only_padding_is_overlooked():
    message = golden.filled(KINDS['Observation'])
    walk = Walk(message)
    raw = bytes(byte ^ 1 if at in walk.padding else byte for at, byte in enumerate(walk.data))
    assert raw != walk.data
    assert walk.masked(raw) == walk.data
    assert walk.masked(walk.data[:4] + b'\xff' + walk.data[5:]) != walk.data
