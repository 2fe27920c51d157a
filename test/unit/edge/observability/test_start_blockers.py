# SPDX-License-Identifier: Apache-2.0
"""What is logged of a robot that does not begin: each reason once, and no moment's wait."""

from __future__ import annotations

from lerobot_serve.edge.observability.change_log import LatchLog, StandingReasonLog


def logged(*looks: tuple[str, int]) -> list[str]:
    lines: list[str] = []
    waiting = StandingReasonLog(lines.append, 'no commands sent: ')
    for why, commands in looks:
        waiting.poll(why, commands)
    return lines


def test_what_lasts_is_logged_once():
    assert logged(*[('far outside', 0)] * 9) == ['no commands sent: far outside']
    assert len(logged(*[('far outside', 0), ('far outside', 0), ('', 0)] * 9)) == 1


def test_a_moments_wait_is_not():
    assert logged(('1 of 3', 0), ('2 of 3', 0), ('', 1), ('1 of 3', 1)) == []


def test_after_a_command_it_is_logged_again():
    twice = [('far outside', 0)] * 2
    assert len(logged(*twice, ('', 5), *[('far outside', 5)] * 2)) == 2


def test_a_latch_is_logged_once_and_its_reset_too():
    lines: list[str] = []
    log = LatchLog(error=lambda text: lines.append(f'E {text}'), info=lines.append)
    for reason in ('', 'too fast', 'too fast', '', '', 'too far'):
        log.poll(reason)
    assert [line.partition(';')[0] for line in lines] == [
        'E Safety cage latched (too fast)',
        'Safety cage reset',
        'E Safety cage latched (too far)',
    ]
    assert '~/reset_cage' in lines[0]
