# SPDX-License-Identifier: Apache-2.0
"""A port of Fast DDS is blocked by a claimed cell that is never filled, by nothing else."""

from __future__ import annotations

import os

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

from lerobot_serve.shared_memory import ports
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
