# SPDX-License-Identifier: Apache-2.0
"""Text of others on a terminal."""

from __future__ import annotations

from hypothesis import given, strategies
import pytest

from lerobot_serve.tools.output.text import COLOUR, log_line, printable, without_controls


def test_a_text_is_one_line_without_escape_sequences():
    assert without_controls('a\nb\x1b[2Jc\u2028d') == 'a?b?[2Jc?d'
    assert without_controls('a table of pick & place, 90 %') == 'a table of pick & place, 90 %'
    assert printable('a\nb') == r"'a\nb'"


@pytest.mark.parametrize(
    ('line', 'plain', 'coloured'),
    [
        ('a\tb', 'a    b', 'a    b'),
        ('\x1b[33mwarn\x1b[0m', 'warn', '\x1b[33mwarn\x1b[0m\x1b[0m'),
        ('\x1b[31mopen', 'open', '\x1b[31mopen\x1b[0m'),
        ('\x1b[2Jgone\x07', '?[2Jgone?', '?[2Jgone?'),
        ('\x1b]0;title\x07', '?]0;title?', '?]0;title?'),
    ],
)
def test_a_line_of_a_log_keeps_its_colours_and_nothing_else(line, plain, coloured):
    assert log_line(line, colours=False) == plain
    assert log_line(line, colours=True) == coloured


@given(strategies.text(), strategies.booleans())
def test_no_line_of_a_log_controls_the_terminal(line, colours):
    left = COLOUR.sub('', log_line(line, colours=colours))
    assert left.isprintable()
