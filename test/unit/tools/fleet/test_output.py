# SPDX-License-Identifier: Apache-2.0
"""Processes of a fleet: their lines to any reader, their ends, and their own state."""

from __future__ import annotations

from collections.abc import Iterator
import io
import os
from pathlib import Path
import threading

import pytest
from support.waiting import wait_until

from lerobot_serve.tools.fleet import process_output
from lerobot_serve.tools.fleet.process import (
    Action,
    decide,
    delay_s,
    Ending,
    ending_of,
    FleetProcess,
    LONGEST_DELAY_S,
    QUICK_FAILURES,
    QUICK_S,
    Reaction,
    Stage,
    with_own_state,
)
from lerobot_serve.tools.fleet.process_output import (
    LINE_LIMIT,
    LineBuffer,
    PrefixedOutput,
    QueuedLines,
    wants_colours,
    write_all,
)

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
    monkeypatch.setattr(process_output, 'LINES_LIMIT', 3)
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
    monkeypatch.setattr(process_output, 'LINES_LIMIT', 2)
    stop_reading(reader, lines)
    for text in ('0', '1', 'lost'):
        lines.write(text)
    monkeypatch.setattr(process_output, 'LINES_LIMIT', 10)
    lines.write('2')
    reader.reads.set()
    wait_until(lambda: '2' in reader.lines, 'all are written')
    assert reader.lines == ['blocked', '0', '1', '1 dropped', '2']


def test_long_lines_count_by_their_length(reader, lines, monkeypatch):
    monkeypatch.setattr(process_output, 'CHARACTERS_LIMIT', 10)
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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_pieces_are_joined_to_lines():
    lines = LineBuffer()
    assert list(lines.add(b'one\ntw')) == ['one']
    assert list(lines.add(b'o\r\n\nthree')) == ['two', '']
    assert list(lines.rest()) == ['three']
    assert list(lines.rest()) == []
    assert lines.last_line == 'three'


def test_a_character_in_two_pieces_and_bytes_that_are_none():
    lines = LineBuffer()
    first, second = 'ü\n'.encode()[:1], 'ü\n'.encode()[1:]
    assert list(lines.add(first)) == []
    assert list(lines.add(second)) == ['ü']
    assert list(lines.add(b'\xff\n')) == ['\ufffd']


def test_a_line_without_end_is_bounded():
    lines = LineBuffer()
    assert [len(line) for line in lines.add(b'x' * (LINE_LIMIT + 1))] == [LINE_LIMIT + 1]
    assert list(lines.rest()) == []


def test_names_are_aligned():
    stream = io.StringIO()
    output = PrefixedOutput(stream.write, ['prod', 'robot_1.sim'], colours=False)
    output.write('prod', 'a')
    output.write('robot_1.sim', 'b')
    output.own('c')
    assert stream.getvalue() == 'prod        | a\nrobot_1.sim | b\nup          | c\n'


def test_each_process_has_a_colour_and_only_the_name_has_it():
    stream = Terminal()
    output = PrefixedOutput(stream.write, ['a', 'b'], colours=True)
    for name in ('a', 'b', 'up'):
        output.write(name, 'text')
    assert stream.getvalue().splitlines() == [
        '\x1b[36ma  |\x1b[0m text',
        '\x1b[33mb  |\x1b[0m text',
        '\x1b[1mup |\x1b[0m text',
    ]


def test_there_are_colours_for_any_number_of_processes():
    names = [f'n{number}' for number in range(50)]
    output = PrefixedOutput(Terminal().write, names, colours=True)
    assert all(output.prefix(name).startswith('\x1b[') for name in names)


@pytest.mark.parametrize(
    ('stream', 'environment', 'wanted'),
    [
        (Terminal(), {'TERM': 'xterm'}, True),
        (io.StringIO(), {'TERM': 'xterm'}, False),
        (Terminal(), {'NO_COLOR': '1'}, False),
        (Terminal(), {'TERM': 'dumb'}, False),
    ],
)
def test_colours_are_for_terminals(stream, environment, wanted):
    assert wants_colours(stream, environment) is wanted


QUICK, LONG = QUICK_S - 0.1, QUICK_S
RESTART, LEAVE, GIVE_UP = Action.RESTART, Action.LEAVE, Action.GIVE_UP
# (exit status, quick failures before) -> what follows a quick end
TABLE = {
    **{(0, before): Reaction(LEAVE, 0.0, 0) for before in range(12)},
    (1, 0): Reaction(RESTART, 1.0, 1),
    (1, 1): Reaction(RESTART, 2.0, 2),
    **{(1, before): Reaction(GIVE_UP, 0.0, before + 1) for before in range(2, 12)},
    (-9, 0): Reaction(RESTART, 1.0, 1),
    (-9, 1): Reaction(RESTART, 2.0, 2),
    (-9, 2): Reaction(RESTART, 4.0, 3),
    (-9, 3): Reaction(RESTART, 8.0, 4),
    (-9, 4): Reaction(RESTART, 16.0, 5),
    **{(-9, before): Reaction(RESTART, 30.0, before + 1) for before in range(5, 9)},
    **{(-9, before): Reaction(GIVE_UP, 0.0, before + 1) for before in range(9, 12)},
}


@pytest.mark.parametrize(('status', 'before'), TABLE)
def test_after_a_quick_end(status, before):
    assert decide(status, QUICK, before) == TABLE[status, before]


@pytest.mark.parametrize('before', range(12))
@pytest.mark.parametrize('status', [1, 2, 137, -9, -11])
def test_after_a_long_run_the_count_begins_again(status, before):
    assert decide(status, LONG, before) == Reaction(RESTART, 1.0, 0)


@pytest.mark.parametrize('before', range(12))
def test_what_an_operator_stopped_is_left_also_after_a_long_run(before):
    assert decide(0, LONG, before) == Reaction(LEAVE, 0.0, 0)


def test_every_ending_has_a_rule():
    assert set(QUICK_FAILURES) == set(Ending)
    assert {ending_of(status) for status in (0, 1, 255, -1, -15)} == set(Ending)


def test_delays_grow_to_a_limit():
    delays = [delay_s(count) for count in range(1000)]
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY_S


HOME = Path('/home/kim/.ros')


def plan(**router: object) -> list[FleetProcess]:
    return [
        FleetProcess('v1', Stage.SERVER, 'policy_server', 'v1', {}),
        FleetProcess('router', Stage.ROUTER, 'policy_router', '', router),
        FleetProcess('left_arm', Stage.ROBOT, 'edge_controller', 'left_arm', {}),
    ]


def folder_of(fleet: str, **router: object) -> str:
    server, own, robot = with_own_state(plan(**router), Path(fleet), HOME)
    assert server.values == {}
    name = Path(robot.values['state_folder']).relative_to(HOME / 'lerobot_serve' / 'fleets')
    assert name.parts[1:] == ('robots', 'left_arm')
    return own.values['state_folder']


def test_each_file_has_a_folder_and_keeps_it():
    first = folder_of('/a/fleet.yaml')
    assert first == folder_of('/a/fleet.yaml')
    assert first.startswith('/home/kim/.ros/lerobot_serve/fleets/fleet-')
    assert first not in {folder_of('/b/fleet.yaml'), folder_of('/a/other.yaml')}


def test_a_folder_that_the_file_names_stays():
    assert folder_of('/a/fleet.yaml', state_folder='/var/lib/x') == '/var/lib/x'
