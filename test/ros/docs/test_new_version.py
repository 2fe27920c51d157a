# SPDX-License-Identifier: Apache-2.0
"""docs/new_version.md, word for word, with the fleet that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import re
import signal

import pytest
from support.docs.walk import Walk
from support.paths import REPOSITORY
from support.waiting import wait_until

pytestmark = pytest.mark.release
pytest.importorskip('torch', reason='the shipped policies run on torch')
SECTION = 'Walk through it'
START_S, END_S = 120.0, 90.0


def walked_commands() -> list[str]:
    """Return the commands of the section, in their order."""
    page = (REPOSITORY / 'docs' / 'new_version.md').read_text()
    section = page.split(f'## {SECTION}\n')[1].split('\n## ')[0]
    return [
        line
        for block in re.findall(r'```\n(.*?)```', section, re.DOTALL)
        for line in block.splitlines()
    ]


@pytest.fixture
def walk(tmp_path) -> Iterator[Walk]:
    return Walk(tmp_path)


SHOWN: dict[str, Callable[[str], bool]] = {
    'rollout shadow': lambda out: '/rehearsal/policy_server:' in out,
    'rollout start': lambda out: 'rollout: off -> ' in out and ' by ' in out,
    'rollout status': lambda out: 'guard changed by the cage' in out and 'of 3000 commands' in out,
    'rollout pause': lambda out: '-> paused' in out,
    'rollout resume': lambda out: 'paused -> ' in out,
    'rollout promote': lambda out: '100 % of all new episodes' in out and '-> promoted' in out,
    'rollout finish': lambda out: 'slot a serves reach_v2@' in out,
    'rollout history': lambda out: all(
        part in out
        for part in (
            'rollout planned',
            'better at the edge [by ',
            'rollout paused',
            'seen enough [by ',
            'rollout finished',
            'episodes and outcomes of each policy:',
            'reach_v2@',
        )
    ),
    'robots': lambda out: '2 robots:' in out,
}


def test_the_page_is_walked_word_for_word(walk):
    first, *others = walked_commands()
    assert first == 'lerobot-serve up two_versions'
    assert {name for line in others for name in SHOWN if f' {name}' in line} == set(SHOWN)
    fleet = walk.up(first)
    try:
        wait_until(lambda: walk.log.count('CONNECTING -> STREAMING') >= 2, 'they move', START_S)
        for line in others:
            status, printed = walk.types(line)
            assert status == 0, (line, printed, walk.log[-3000:])
            (shown,) = [check for name, check in SHOWN.items() if f'-serve {name}' in line]
            assert shown(printed), (line, printed)
        fleet.send_signal(signal.SIGINT)
        assert fleet.wait(END_S) == 0, walk.log[-3000:]
    finally:
        fleet.kill()
        fleet.wait()
