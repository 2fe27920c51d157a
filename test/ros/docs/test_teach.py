# SPDX-License-Identifier: Apache-2.0
"""docs/teach.md, word for word: from a takeover to a dataset of what was done."""

from __future__ import annotations

import glob
import json
from pathlib import Path
import re
import shlex
import signal

import pytest
from support.docs.walk import Walk
from support.paths import REPOSITORY
from support.waiting import wait_until

pytestmark = pytest.mark.slow
pytest.importorskip('torch', reason='the shipped policies run on torch')
pytest.importorskip('lerobot', reason='LeRobot writes the dataset')
START_S, END_S = 120.0, 90.0
BAGS = 'ros/lerobot_serve/bags/teach'


def typed_commands() -> list[str]:
    """Return the commands of the page that need no training, in their order."""
    page = (REPOSITORY / 'docs' / 'teach.md').read_text()
    return [
        line
        for block in re.findall(r'```\n(.*?)```', page, re.DOTALL)
        for line in block.splitlines()
        if line.startswith('lerobot-serve')
    ]


def episodes(folder: Path) -> list[dict]:
    lines = (folder / 'meta/lerobot_serve/episodes.jsonl').read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_page_is_walked_word_for_word(tmp_path):
    first, take_over, robots, hand_back, dataset = typed_commands()
    walk = Walk(tmp_path)
    fleet = walk.up(first)
    try:
        wait_until(lambda: 'CONNECTING -> STREAMING' in walk.log, 'it moves', START_S)
        status, printed = walk.types(take_over)
        assert status == 0, printed
        before = walk.log.count('messages')
        wait_until(lambda: walk.log.count('messages') >= before + 4, 'bags of a person', START_S)
        status, printed = walk.types(robots)
        assert (status, 'taken over by a person' in printed) == (0, True), printed
        status, printed = walk.types(hand_back)
        assert status == 0, printed
        fleet.send_signal(signal.SIGINT)
        assert fleet.wait(END_S) == 0, walk.log[-3000:]
    finally:
        fleet.kill()
        fleet.wait()
    # what a shell does
    bags = sorted(glob.glob(str(tmp_path / BAGS / '*')))
    home = '~/.ros/lerobot_serve/bags/teach/*'
    assert f' {home} ' in dataset
    status, printed = walk.types(dataset.replace(home, shlex.join(bags)))
    assert status == 0, printed
    made = episodes(tmp_path / 'datasets/reach')
    assert made
    assert {each['outcome'] for each in made} == {'success'}
    assert any(each['intervention'] for each in made)
    assert not any(each['rows_left_out'] for each in made), made
    assert 'as many frames as rows of every camera' in printed
