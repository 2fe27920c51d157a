# SPDX-License-Identifier: Apache-2.0
"""A port is marked when its owner was killed, or when it was replaced; nothing else is written."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
import re

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.middleware.blocked_port import BEGIN, NUMBER, port_bytes

from lerobot_serve.shared_memory import dead_ports
from lerobot_serve.shared_memory.dead_ports import mark_dead_ports, number_of, ReplacedPorts

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
    pattern = re.compile(rf' ([0-9]+) +({port.parent}/{dead_ports.PORT_NAME})$', re.M)
    monkeypatch.setattr(dead_ports, 'MAPPED', pattern)
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
    assert dead_ports.MAPPED.findall(f'{line}\n') == [('610', '/dev/shm/fastrtps_port7411')]
    assert dead_ports.MAPPED.findall(f'{line} (deleted)\n') == []
    assert number_of(Path('/dev/shm/fastdds_port7411')) == 7411
