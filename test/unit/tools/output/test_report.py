# SPDX-License-Identifier: Apache-2.0
"""A report as text for a terminal and for a pipe, and as HTML; texts of others in it."""

from __future__ import annotations

from hypothesis import given, strategies
from hypothesis import strategies as st
import pytest

from lerobot_serve.tools.output.report import as_html, Facts, Report, Table
from lerobot_serve.tools.output.text import COLOUR, log_line, printable, without_controls

PARTS = [
    'two robots',
    '',
    Table(('NAME', 'AGE', 'WHY'), [('r1', '3 s', ''), ('robot_2', '14 s', 'it waits')], right=[1]),
    Facts([('a', 'one'), ('bcd', 'two words that go on')], width=5),
    '  note: the last line continues',
]
TEXT = """\
two robots

NAME      AGE  WHY
r1        3 s
robot_2  14 s  it waits
  a      one
  bcd    two words that go on
  note: the last line continues"""
TEXTS = st.text(st.characters(exclude_categories=['Cs']), max_size=9)


@pytest.mark.parametrize(('columns', 'text'), [(None, TEXT), (80, TEXT)])
def test_what_fits_is_one_line(columns, text):
    assert Report({}, PARTS).as_text(columns) == text


def test_what_exceeds_a_terminal_goes_on_indented():
    long = Facts([('bcd', ' '.join(['word'] * 12))])
    assert Report({}, [long]).as_text(40).splitlines() == [
        '  bcd  word word word word word word',
        *['       word word word word word word'],
    ]
    # too narrow a column is left to the terminal
    assert len(Report({}, [long]).as_text(20).splitlines()) == 1


@given(st.lists(st.tuples(TEXTS, TEXTS)), TEXTS)
def test_no_text_forges_a_line_or_controls_a_terminal(rows, line):
    shown = Report({}, [Table(('a', 'b'), rows), line]).as_text(80)
    assert shown.count('\n') == len(rows) + 1
    assert shown.replace('\n', '').isprintable()


def test_marks_are_painted_on_a_terminal_only():
    report = Report({}, [Facts([('FAIL', 'FAIL of it')])], marks={'FAIL': 31})
    assert report.as_text() == '  FAIL  FAIL of it'
    assert report.as_text(80) == '  \033[31mFAIL\033[0m  FAIL of it'


def test_a_page_escapes_texts():
    assert as_html([Table(('<a>',), [('&',)]), '', Facts([('b', 'c')]), 'x']) == (
        '<table><tr><th>&lt;a&gt;</th></tr><tr><td>&amp;</td></tr></table>'
        '<table><tr><td>b</td><td>c</td></tr></table><p>x</p>'
    )


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
