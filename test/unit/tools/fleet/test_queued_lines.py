# SPDX-License-Identifier: Apache-2.0
"""Lines to a reader that stops, reads again, or goes away."""

from __future__ import annotations

from collections.abc import Iterator
import os
import threading

import pytest
from support.waiting import wait_until

from lerobot_serve.tools.fleet.output import queued_lines
from lerobot_serve.tools.fleet.output.queued_lines import QueuedLines, write_all

LIMIT_S = 30.0


class Reader:
    """A reader that can stop; `lines` is what it has read."""

    def __init__(self) -> None:
        self.reads = threading.Event()
        self.reads.set()
        self.begun: list[str] = []
        self.lines: list[str] = []

    def write(self, line: str) -> None:
        self.begun.append(line)
        assert self.reads.wait(LIMIT_S)
        self.lines.append(line)


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.reads.set()


@pytest.fixture
def lines(reader) -> Iterator[QueuedLines]:
    made = QueuedLines(reader.write, lambda count: f'{count} dropped')
    yield made
    reader.reads.set()
    assert made.close(LIMIT_S)


def stop_reading(reader: Reader, lines: QueuedLines) -> None:
    """Stop the reader in the middle of a line."""
    reader.reads.clear()
    lines.write('blocked')
    wait_until(lambda: 'blocked' in reader.begun, 'it writes')


def test_lines_arrive_in_order(reader, lines):
    for number in range(1000):
        lines.write(str(number))
    assert lines.close(LIMIT_S)
    assert reader.lines == [str(number) for number in range(1000)]


def test_a_reader_that_stops_blocks_nobody_and_learns_what_it_missed(reader, lines, monkeypatch):
    monkeypatch.setattr(queued_lines, 'LINES_LIMIT', 3)
    stop_reading(reader, lines)
    for number in range(10):
        lines.write(str(number))
    assert reader.lines == []
    reader.reads.set()
    wait_until(lambda: len(reader.lines) == 5, 'the rest is written')
    lines.write('later')
    wait_until(lambda: 'later' in reader.lines, 'the next line is written')
    assert reader.lines == ['blocked', '0', '1', '2', '7 dropped', 'later']


def test_the_number_is_in_the_place_of_the_dropped_lines(reader, lines, monkeypatch):
    monkeypatch.setattr(queued_lines, 'LINES_LIMIT', 2)
    stop_reading(reader, lines)
    for text in ('0', '1', 'lost'):
        lines.write(text)
    monkeypatch.setattr(queued_lines, 'LINES_LIMIT', 10)
    lines.write('2')
    reader.reads.set()
    wait_until(lambda: '2' in reader.lines, 'all are written')
    assert reader.lines == ['blocked', '0', '1', '1 dropped', '2']


def test_long_lines_count_by_their_length(reader, lines, monkeypatch):
    monkeypatch.setattr(queued_lines, 'CHARACTERS_LIMIT', 10)
    stop_reading(reader, lines)
    for text in ('12345', '67890', 'x'):
        lines.write(text)
    reader.reads.set()
    wait_until(lambda: len(reader.lines) == 4, 'all are written')
    assert reader.lines[1:] == ['12345', '67890', '1 dropped']


def test_the_end_is_bounded_where_nothing_is_read(reader, lines):
    stop_reading(reader, lines)
    assert lines.close(0.01) is False


def test_a_reader_that_has_gone_is_reported(reader):
    def fail(line: str) -> None:
        raise BrokenPipeError

    lines = QueuedLines(fail, str)
    lines.write('a')
    assert lines.close(LIMIT_S)
    with pytest.raises(BrokenPipeError):
        lines.write('b')


def test_all_bytes_pass_a_pipe_that_does_not_block():
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    data = os.urandom(1 << 20)
    writer = threading.Thread(target=write_all, args=(write_end, data))
    writer.start()
    found = b''
    while len(found) < len(data):
        found += os.read(read_end, 1 << 16)
    writer.join(LIMIT_S)
    assert found == data
    for end in (read_end, write_end):
        os.close(end)
