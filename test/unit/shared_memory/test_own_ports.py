# SPDX-License-Identifier: Apache-2.0
"""A port is sound when it is in order, is read, and no process holds its lock."""

from __future__ import annotations

import threading
import time

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.middleware.blocked_port import BEGIN, CELLS, NUMBER, port_bytes

from lerobot_serve.shared_memory import damaged_ports, ports
from lerobot_serve.shared_memory.damaged_ports import is_locked, wait_until_sound

LOCK_AT = BEGIN + 64
STATES_AT = LOCK_AT + damaged_ports.LOCK_BYTES
LIMIT_S = 0.2

pytestmark = pytest.mark.skipif(
    not damaged_ports.LOCK_BYTES, reason='the lock of a port is known for x86-64 and aarch64 only'
)


def locked_port(lock: int = 0, kind: int = damaged_ports.SHARED_BY_PROCESSES) -> bytearray:
    """Return a port with a lock, in front of the states of its listeners."""
    name = b'fastrtps\0'
    between = bytearray(damaged_ports.LOCK_BYTES + damaged_ports.STATES_BYTES + 64)
    short = port_bytes()
    memory = short[:LOCK_AT] + between + short[LOCK_AT:]
    name_at = STATES_AT + damaged_ports.STATES_BYTES
    memory[name_at : name_at + len(name)] = name
    ports.COUNT.pack_into(memory, LOCK_AT, lock)
    ports.COUNT.pack_into(memory, LOCK_AT + damaged_ports.KIND_OFFSET, kind)
    moved = len(between)
    cells_at, ring_at = ports.HEADER.unpack_from(memory, BEGIN)[2:4]
    ports.COUNT.pack_into(memory, BEGIN + 12, cells_at + moved)
    ports.COUNT.pack_into(memory, BEGIN + 16, ring_at + moved)
    return memory


@pytest.fixture
def port(tmp_path, monkeypatch):
    file = tmp_path / f'fastrtps_port{NUMBER}'
    file.write_bytes(locked_port())
    monkeypatch.setattr(damaged_ports, 'ports_of', lambda: {file: NUMBER})
    return file


def test_the_port_of_these_tests_has_the_layout_of_fast_dds():
    layout = ports.find_layout(locked_port(), NUMBER)
    assert layout and layout.cells == CELLS and layout.flags_at < LOCK_AT


def test_a_sound_port_is_not_waited_for(port, monkeypatch):
    monkeypatch.setattr(time, 'sleep', lambda _: pytest.fail('waits'))
    assert wait_until_sound()


def test_a_process_without_ports_waits_for_nothing(monkeypatch):
    monkeypatch.setattr(damaged_ports, 'ports_of', dict)
    assert wait_until_sound(0)


@pytest.mark.parametrize('lock', [1, 2, 2**31])
def test_a_port_whose_lock_is_held_is_not_sound(port, lock: int):
    port.write_bytes(locked_port(lock))
    assert not wait_until_sound(LIMIT_S)


def test_another_kind_of_lock_is_not_looked_at(port):
    port.write_bytes(locked_port(lock=2, kind=0))
    assert wait_until_sound(LIMIT_S)


@pytest.mark.parametrize('flags', range(7))
def test_a_port_that_is_marked_or_not_yet_read_is_not_sound(port, flags: int):
    memory = locked_port()
    memory[BEGIN + ports.FLAGS_OFFSET] = flags
    port.write_bytes(memory)
    assert not wait_until_sound(LIMIT_S)


def test_a_port_without_a_listener_is_not_sound(port):
    memory = locked_port()
    ports.COUNT.pack_into(memory, BEGIN + ports.LISTENERS_OFFSET, 0)
    port.write_bytes(memory)
    assert not wait_until_sound(LIMIT_S)


def test_a_port_is_waited_for_until_it_is_sound(port):
    port.write_bytes(locked_port(lock=2))
    replaced = threading.Timer(0.1, lambda: port.write_bytes(locked_port()))
    replaced.start()
    try:
        assert wait_until_sound(30)
    finally:
        replaced.join()
    assert port.read_bytes() == locked_port()


def test_a_port_that_has_no_lock_file_while_it_is_replaced_is_waited_for(port, monkeypatch):
    found = iter([{port: NUMBER}])
    monkeypatch.setattr(damaged_ports, 'ports_of', lambda: next(found, {}))
    port.write_bytes(locked_port(lock=2))
    assert not wait_until_sound(LIMIT_S)


def test_a_port_whose_file_is_away_is_not_sound(port):
    port.unlink()
    assert not wait_until_sound(LIMIT_S)


def test_a_file_with_another_layout_is_taken_for_sound(port):
    port.write_bytes(b'x' * 100_000)
    assert wait_until_sound(LIMIT_S)


@given(st.binary(max_size=400), st.integers(min_value=0, max_value=60_000))
def test_any_bytes_after_the_header_are_survived(noise: bytes, at: int):
    memory = locked_port()
    begin = BEGIN + ports.FLAGS_OFFSET + 1 + at
    memory[begin : begin + len(noise)] = noise
    layout = ports.find_layout(memory, NUMBER)
    if layout:
        is_locked(memory, layout)


def test_a_problem_names_the_port_and_what_it_is(port):
    assert damaged_ports.find_problem({}) == ''
    port.write_bytes(locked_port(lock=2))
    assert damaged_ports.find_problem({}) == f'{port.name} is locked'
    port.unlink()
    assert damaged_ports.find_problem({}) == f'{port.name} has no file'
