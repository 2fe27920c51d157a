# SPDX-License-Identifier: Apache-2.0
"""Pieces of pipes as lines with names."""

from __future__ import annotations

import io

import pytest

from lerobot_serve.tools.fleet.output.prefixed_output import (
    LINE_LIMIT,
    LineBuffer,
    PrefixedOutput,
    wants_colours,
)


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
    output = PrefixedOutput(stream, ['prod', 'robot_1.sim'], colours=False)
    output.write('prod', 'a')
    output.write('robot_1.sim', 'b')
    output.own('c')
    assert stream.getvalue() == 'prod        | a\nrobot_1.sim | b\nup          | c\n'


def test_each_process_has_a_colour_and_only_the_name_has_it():
    stream = Terminal()
    output = PrefixedOutput(stream, ['a', 'b'], colours=True)
    for name in ('a', 'b', 'up'):
        output.write(name, 'text')
    assert stream.getvalue().splitlines() == [
        '\x1b[36ma  |\x1b[0m text',
        '\x1b[33mb  |\x1b[0m text',
        '\x1b[1mup |\x1b[0m text',
    ]


def test_there_are_colours_for_any_number_of_processes():
    names = [f'n{number}' for number in range(50)]
    output = PrefixedOutput(Terminal(), names, colours=True)
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
