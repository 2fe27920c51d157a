# SPDX-License-Identifier: Apache-2.0
"""A port of Fast DDS is blocked by a claimed cell that is never filled, by nothing else."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.middleware.blocked_port import (
    BEGIN,
    CELLS,
    claim_cell,
    following,
    LAST_TURN,
    NUMBER,
    port_bytes,
)

from lerobot_serve.shared_memory import damaged_ports, ports
from lerobot_serve.shared_memory.damaged_ports import mark_dead_ports, number_of, ReplacedPorts
from lerobot_serve.shared_memory.ports import (
    BlockedPort,
    examine,
    find_layout,
    PortGuard,
    unfilled_cell,
    UnfilledCell,
)


def unfilled(memory: bytearray) -> tuple[int, int] | None:
    layout = find_layout(bytes(memory), NUMBER)
    assert layout
    found = unfilled_cell(bytes(memory), layout)
    return found and (found.cell, found.claimed)


@pytest.mark.parametrize('claim', [0, 3, CELLS - 1, LAST_TURN, LAST_TURN | 5])
@pytest.mark.parametrize('claimed', range(CELLS + 1))
@pytest.mark.parametrize('filled', range(CELLS + 1))
def test_the_reader_waits_for_the_first_claimed_cell_while_it_is_not_filled(
    claim: int, claimed: int, filled: int
):
    """`filled` of the claimed cells have a message, the first ones; every state of a ring."""
    first = ((claim & ports.INDEX_MASK) - claimed) % CELLS
    unread = {(first + each) % CELLS: 1 for each in range(min(filled, claimed))}
    expected = (first, claimed) if claimed and not filled else None
    assert unfilled(port_bytes(claim, CELLS - claimed, unread)) == expected


def test_later_cells_that_are_filled_do_not_help_the_reader():
    assert unfilled(port_bytes(3, CELLS - 3, {1: 1, 2: 1})) == (0, 3)


def test_a_port_that_is_marked_already_is_left_alone():
    assert unfilled(port_bytes(1, CELLS - 1, flags=6)) is None


@given(st.binary(max_size=2048), st.integers(0, 2**32 - 1))
def test_no_bytes_raise(raw: bytes, number: int):
    layout = find_layout(raw, number)
    if layout:
        unfilled_cell(raw, layout)


@given(st.data())
def test_no_damage_of_a_port_raises(data: st.DataObject):
    memory = port_bytes(1, CELLS - 1)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(BEGIN, len(memory) - 1))
        memory[at] = data.draw(st.integers(0, 255))
    raw = bytes(memory[: data.draw(st.integers(0, len(memory)))])
    layout = find_layout(raw, NUMBER)
    if layout:
        unfilled_cell(raw, layout)


@pytest.mark.parametrize(
    'at, value',
    [(12, 9), (16, 0), (16, 1 << 20), (28, 996), (32, 334), (36, 9), (36, 0), (44, 8)],
    ids=['cells_at', 'ring_at', 'ring far', 'check', 'wait', 'cells', 'no cells', 'flags'],
)
def test_another_layout_is_not_known(at: int, value: int):
    memory = port_bytes(1, CELLS - 1)
    memory[BEGIN + at : BEGIN + at + 4] = value.to_bytes(4, 'little')
    assert find_layout(bytes(memory), NUMBER) is None
    assert find_layout(bytes(port_bytes()), NUMBER + 1) is None


@pytest.fixture
def own_port(tmp_path, monkeypatch):
    """A port that this process owns, in a file."""
    file = tmp_path / f'fastrtps_port{NUMBER}'
    file.write_bytes(port_bytes())
    monkeypatch.setattr(ports, 'ports_of', lambda: {file: NUMBER})
    return file


def test_a_blocked_port_is_marked_after_a_message_and_nothing_else_is_written(own_port):
    guard = PortGuard()
    assert guard.check() == []
    claim_cell(own_port, NUMBER)
    for _ in range(3):
        assert guard.check() == []
    # a message behind the unfilled cell
    own_port.write_bytes(port_bytes(2, CELLS - 2, {1: 1}))
    before = own_port.read_bytes()
    assert guard.check() == [BlockedPort(own_port, 2)]
    after = own_port.read_bytes()
    assert [at for at in range(len(before)) if before[at] != after[at]] == [BEGIN + 44]
    assert after[BEGIN + 44] == 6
    assert guard.check() == guard.check() == []


def test_a_port_that_is_full_of_cells_without_a_message_is_marked(own_port):
    """As one whose earlier owner was blocked: a sender finds no room."""
    guard = PortGuard()
    own_port.write_bytes(port_bytes(5, 0))
    assert guard.check() == []
    assert guard.check() == [BlockedPort(own_port, CELLS)]


@pytest.mark.parametrize('left', range(1, CELLS))
def test_a_port_whose_earlier_owner_left_cells_claimed_works(own_port, left: int):
    guard, messages = PortGuard(), 3 * CELLS
    claims = [0]
    for _ in range(messages):
        claims.append(following(claims[-1], CELLS))
    for claim in claims:
        # all messages were read, twice at rest
        own_port.write_bytes(port_bytes(claim, CELLS - left))
        assert guard.check() == guard.check() == []


def test_a_port_that_is_full_of_messages_is_left_to_its_reader(own_port):
    guard = PortGuard()
    own_port.write_bytes(port_bytes(5, 0, dict.fromkeys(range(CELLS), 1)))
    assert guard.check() == guard.check() == []


def test_a_port_that_was_free_in_between_is_not_marked(own_port):
    guard = PortGuard()
    for claim in (1, 2, 3):
        own_port.write_bytes(port_bytes(claim, CELLS - claim))
        assert guard.check() == []
        own_port.write_bytes(port_bytes(claim, CELLS))
        assert guard.check() == []


def test_a_file_that_is_no_port_is_left_alone(tmp_path):
    assert examine(tmp_path / 'none', NUMBER) is None
    empty, short, link, fifo = (tmp_path / name for name in ('empty', 'short', 'link', 'fifo'))
    empty.touch()
    short.write_bytes(bytes(port_bytes(1, CELLS - 1))[: BEGIN + 40])
    target = tmp_path / 'target'
    target.write_bytes(port_bytes(1, CELLS - 1))
    link.symlink_to(target)
    os.mkfifo(fifo)
    for file in (empty, short, link, fifo, tmp_path):
        assert examine(file, NUMBER, UnfilledCell(0, 7, 1, CELLS)) is None
    assert target.read_bytes() == port_bytes(1, CELLS - 1)


# a port is marked when its owner was killed, or when it was replaced; nothing else is written


NAME = f'fastrtps_port{NUMBER}'
FLAGS_AT, LISTENERS_AT = BEGIN + 44, BEGIN + 24
MARKED = 6


@pytest.fixture
def port(tmp_path) -> Path:
    """A port in use, and its lock file, which is free."""
    (tmp_path / f'{NAME}_el').touch()
    file = tmp_path / NAME
    file.write_bytes(port_bytes())
    return file


def test_a_port_whose_lock_is_free_is_marked_and_nothing_else_is_written(port):
    before = port.read_bytes()
    assert mark_dead_ports(port.parent) == [port]
    after = port.read_bytes()
    assert [at for at in range(len(before)) if before[at] != after[at]] == [FLAGS_AT]
    assert after[FLAGS_AT] == MARKED
    # the lock file stays: by it Fast DDS knows that the owner has ended
    assert sorted(file.name for file in port.parent.iterdir()) == [NAME, f'{NAME}_el']
    assert mark_dead_ports(port.parent) == []


def test_a_port_without_a_lock_file_has_no_owner(port):
    """Fast DDS removes the file when it finds the lock free."""
    Path(f'{port}_el').unlink()
    assert mark_dead_ports(port.parent) == [port]


def test_a_port_whose_owner_runs_is_left_alone(port):
    with open(f'{port}_el') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert mark_dead_ports(port.parent) == []
    assert port.read_bytes() == port_bytes()


@pytest.mark.parametrize('flags', [flags for flags in range(8) if flags != 7])
def test_a_port_that_is_damaged_or_has_not_one_reader_is_left_alone(port, flags: int):
    port.write_bytes(port_bytes(flags=flags))
    assert mark_dead_ports(port.parent) == []
    assert port.read_bytes()[FLAGS_AT] == flags


def test_a_port_whose_reader_has_ended_orderly_is_left_alone(port):
    memory = port_bytes()
    memory[LISTENERS_AT] = 0
    port.write_bytes(memory)
    assert mark_dead_ports(port.parent) == []


def test_a_port_of_another_user_is_left_alone(port, monkeypatch):
    monkeypatch.setattr(os, 'getuid', lambda: 12345)
    assert mark_dead_ports(port.parent) == []


@pytest.mark.parametrize(
    'name', [f'{NAME}_mutex', f'x{NAME}', 'fastrtps_port', f'fastrtps_port{10**12}', 'other']
)
def test_other_files_are_left_alone(tmp_path, name: str):
    (tmp_path / name).write_bytes(port_bytes())
    assert mark_dead_ports(tmp_path) == []
    assert (tmp_path / name).read_bytes() == port_bytes()


def test_links_folders_and_fifos_are_left_alone(tmp_path):
    target = tmp_path / 'target'
    target.write_bytes(port_bytes())
    (tmp_path / 'fastrtps_port1').symlink_to(target)
    (tmp_path / 'fastrtps_port2').mkdir()
    os.mkfifo(tmp_path / 'fastrtps_port3')
    # one whose lock file cannot be opened may have an owner
    (tmp_path / NAME).write_bytes(port_bytes())
    (tmp_path / f'{NAME}_el').symlink_to(target)
    assert mark_dead_ports(tmp_path) == []
    assert target.read_bytes() == port_bytes()


def test_a_machine_without_shared_memory_has_no_ports(tmp_path):
    assert mark_dead_ports(tmp_path / 'none') == []


@given(st.binary(max_size=1024))
def test_no_bytes_keep_a_node_from_starting(tmp_path_factory, raw: bytes):
    folder = tmp_path_factory.mktemp('ports')
    (folder / NAME).write_bytes(raw)
    assert mark_dead_ports(folder) == []


def as_map(*ports: Path, replaced: Path | None = None) -> str:
    """Return the lines of a memory map; a replaced file has an inode of its own."""
    lines = [f'{port.stat().st_ino} {port}' for port in ports]
    lines += [f'12 {replaced} (deleted)'] if replaced else []
    return ''.join(f'7f00-7f01 rw-s 00000000 00:1b {line}\n' for line in lines)


@pytest.fixture
def mapped(port, monkeypatch):
    """What follows the ports of this folder."""
    pattern = re.compile(rf' ([0-9]+) +({port.parent}/{damaged_ports.PORT_NAME})$', re.M)
    monkeypatch.setattr(damaged_ports, 'MAPPED', pattern)
    ports = ReplacedPorts()
    yield ports
    ports.close()


def replace(port: Path) -> int:
    """Put another port in the place of one; return a handle of the old one."""
    handle = os.open(port, os.O_RDONLY)
    port.unlink()
    port.write_bytes(port_bytes())
    return handle


def flags(handle: int) -> int:
    return os.pread(handle, 1, FLAGS_AT)[0]


def test_a_replaced_port_is_marked_with_the_second_check(mapped, port):
    assert mapped.check(as_map(port)) == []
    old = replace(port)
    now = as_map(replaced=port)
    assert mapped.check(now) == []
    assert flags(old) == 7
    assert mapped.check(now) == [port]
    assert flags(old) == MARKED
    assert port.read_bytes() == port_bytes()
    assert mapped.check(as_map(port)) == []
    os.close(old)


def test_a_port_that_is_replaced_again_is_marked_again(mapped, port):
    for _ in range(3):
        assert mapped.check(as_map(port)) == []
        old = replace(port)
        # the new one is mapped beside the old one
        now = as_map(port, replaced=port)
        assert mapped.check(now) == []
        assert mapped.check(now) == [port]
        assert flags(old) == MARKED
        os.close(old)


def test_a_port_that_fast_dds_has_renewed_itself_is_left_alone(mapped, port):
    assert mapped.check(as_map(port)) == []
    old = replace(port)
    assert mapped.check(as_map(replaced=port)) == []
    assert mapped.check(as_map(port)) == []
    assert flags(old) == 7
    os.close(old)


def test_a_port_that_is_no_longer_mapped_is_closed(mapped, port):
    before = len(os.listdir('/proc/self/fd'))
    for _ in range(3):
        assert mapped.check(as_map(port)) == []
        assert len(os.listdir('/proc/self/fd')) == before + 1
        assert mapped.check('') == []
        assert len(os.listdir('/proc/self/fd')) == before


def test_a_port_that_stays_is_opened_once(mapped, port):
    assert mapped.check(as_map(port)) == []
    before = len(os.listdir('/proc/self/fd'))
    for _ in range(5):
        assert mapped.check(as_map(port, port)) == []
    assert len(os.listdir('/proc/self/fd')) == before
    assert port.read_bytes() == port_bytes()


def test_a_port_that_was_replaced_after_the_map_was_read_is_left_alone(mapped, port):
    before = as_map(port)
    old = replace(port)
    assert mapped.check(before) == []
    now = as_map(replaced=port)
    assert mapped.check(now) == mapped.check(now) == mapped.check(now) == []
    assert port.read_bytes() == port_bytes()
    os.close(old)


def test_the_own_memory_map_has_the_form_that_is_read():
    line = '7f5c-7f5d rw-s 00000000 00:1b 610        /dev/shm/fastrtps_port7411'
    assert damaged_ports.MAPPED.findall(f'{line}\n') == [('610', '/dev/shm/fastrtps_port7411')]
    assert damaged_ports.MAPPED.findall(f'{line} (deleted)\n') == []
    assert number_of(Path('/dev/shm/fastdds_port7411')) == 7411
