# SPDX-License-Identifier: Apache-2.0
"""What the demo shows while it runs, on a terminal and elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from support.demo.parts import FakeWatch

from lerobot_serve.demo.results.screen import command_lines, Screen, status_line
from lerobot_serve.demo.tour.act_order import SERVING, TOURS
from lerobot_serve.demo.tour.link import TypedCommand

HEADING = 'ROS domain 7, this machine only'


def shown_on(board, *, width: int = 120, height: int = 70) -> str:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, width=width, height=height, color_system=None
    )
    with Screen(board, TOURS[SERVING], [HEADING], console) as screen:
        screen.watch = FakeWatch()
        screen.mark_act('kill', '->')
        screen.add_command(typed('x'))
    return file.getvalue()


def typed(line: str) -> TypedCommand:
    return TypedCommand(1.0, 'kill', 'kill -9 7', 'why', [line])


def test_a_terminal_shows_the_view_of_watch_robots_and_the_command(board):
    shown = shown_on(board)
    for text in (
        HEADING,
        'lerobot-serve rollout watch',
        '/policy_router: running, step 1 of 3',
        'changes since this began',
        'lerobot-serve robots',
        'robot_2',
        'a1 is killed <hard>',
        '-> act 3 of 5, kill: a server is killed',
        '# why',
        '$ kill -9 7',
    ):
        assert text in shown, text


@pytest.mark.parametrize(('width', 'height'), [(80, 24), (60, 20), (200, 100)])
def test_a_frame_fits_any_terminal(board, width, height):
    # sequences of a terminal place what follows
    lines = re.split(
        r'\x1b\[[0-9;?]*[a-zA-Z]|[\r\n]+', shown_on(board, width=width, height=height)
    )
    assert max(map(len, lines)) == width
    shown = '\n'.join(lines)
    assert HEADING in shown and 'act 3 of 5' in shown and '$ kill -9 7' in shown


def test_before_the_router_is_found_the_screen_says_so(board):
    assert 'the router is starting' in Screen(board, TOURS[SERVING], [HEADING]).picture().replace(
        '&#160;', ' '
    )


def test_the_view_is_a_picture_that_needs_nothing_else(board):
    screen = Screen(board, TOURS[SERVING], [HEADING])
    screen.watch = FakeWatch()
    screen.add_command(typed('x' * 300))
    picture = screen.picture()
    assert picture.startswith('<svg') and 'robot_2' in picture
    assert 'url(' not in picture.replace('url(#', '')
    # a line is folded, never cut
    assert picture.count('x') > 300 and '\u2026' not in picture


def test_without_a_terminal_there_are_lines_in_their_order(board):
    file = io.StringIO()
    console = Console(file=file, force_terminal=False)
    with Screen(board, TOURS[SERVING], [HEADING], console) as screen:
        screen.watch = FakeWatch(['12:00:00 split to slot a: 100 % -> 75 %'])
        screen.mark_act('kill', '->')
        command = typed('first')
        screen.add_command(command)
        screen.refresh()
        command.lines.append('second')
        board.add_event(104.0, 'a1 is back')
        screen.refresh()
        screen.add_heading('dashboard: http://127.0.0.1:8300')
        screen.refresh()
    lines = [line.strip() for line in file.getvalue().splitlines()]
    assert lines[0] == HEADING
    for text in ('| first', '| second', '12:00:00 split to slot a: 100 % -> 75 %'):
        assert lines.count(text) == 1
    order = [lines.index(t) for t in ('# why', '$ kill -9 7', '| first', '| second')]
    assert order == sorted(order)
    assert sum('a1 is killed' in line for line in lines) == 1
    assert sum('a1 is back' in line for line in lines) == 1
    assert lines[-1] == 'dashboard: http://127.0.0.1:8300'


def test_the_state_is_a_line_now_and_then(board):
    assert 'v1 10/20, v2 20/20' in status_line(board)


def test_a_long_output_is_shortened_at_its_begin():
    command = TypedCommand(1.0, 'kill', 'x', lines=[str(n) for n in range(9)])
    assert command_lines(command, 2) == ['$ x', '(7 lines above)', '7', '8']
    assert command_lines(command, 20) == ['$ x', *map(str, range(9))]
    assert command_lines(command, 0) == ['$ x']


def test_a_picture_holds_no_token(board):
    screen = Screen(
        board, TOURS[SERVING], [HEADING, 'dashboard: http://127.0.0.1:8300/#token=secret']
    )
    assert 'secret' not in screen.picture() and '127.0.0.1:8300' in screen.picture()
