# SPDX-License-Identifier: Apache-2.0
"""docs/learning_loop.md, typed as it stands there: from a policy that misses to a new champion."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import re
import signal

import pytest
from support.docs.walk import Walk
from support.paths import REPOSITORY
from support.waiting import wait_until

pytest.importorskip('torch', reason='the shipped policies run on torch')
pytest.importorskip('lerobot', reason='LeRobot writes the dataset')

# with others beside it, the training takes three times as long as alone
LIMIT_S = 2400.0
pytestmark = [pytest.mark.release, pytest.mark.limit_s(LIMIT_S)]
START_S, ROUND_S, STEP_S, END_S = 120.0, 1200.0, 400.0, 90.0
HOME_TRACES = '~/.ros/lerobot_serve/traces/loop'
# exit statuses of `audit`: all that could be judged holds
HOLDS = 0


def typed_commands() -> list[str]:
    """Return the commands of the walk, in their order."""
    page = (REPOSITORY / 'docs' / 'learning_loop.md').read_text()
    walk = page.partition('## Walk through it')[2].partition('## What the loop does')[0]
    blocks = re.findall(r'```\n(.*?)```', walk, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@contextlib.contextmanager
def fleet(walk: Walk, command: str) -> Iterator[None]:
    """Run a fleet until Ctrl-C."""
    process = walk.up(command)
    try:
        wait_until(lambda: walk.log.count('CONNECTING -> STREAMING') >= 2, 'they move', START_S)
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(END_S) == 0, walk.log[-3000:]
    finally:
        process.kill()
        process.wait()


def types(walk: Walk, line: str, status: int = 0) -> str:
    found, printed = walk.types(line)
    assert found == status, printed
    return printed


def wait_for(walk: Walk, text: str, limit_s: float) -> None:
    def is_there() -> bool:
        failed = re.findall(r'loop: \w+ failed.*', walk.log)
        assert not failed, failed
        return text in walk.log

    try:
        wait_until(is_there, text, limit_s)
    finally:
        if text not in walk.log:
            kept = [line for line in walk.log.splitlines() if not line.startswith('record')]
            print('\n'.join(kept[-80:]))


def test_the_page_is_walked_word_for_word(tmp_path):
    up, take_over, hand_back, watch, versions, history, audit, stats = typed_commands()
    walk = Walk(tmp_path)
    with fleet(walk, up):
        types(walk, take_over)
        wait_for(walk, 'round 1 begins', START_S + ROUND_S)
        types(walk, hand_back)
        wait_for(walk, 'is published as reach@', ROUND_S)
        version = re.findall(r'is published as (\S+)', walk.log)[0]
        for event in ('gate admitted', 'rollout started', 'promoted'):
            wait_for(walk, f'loop: {event} {version}', STEP_S)
        assert 'promoted' in types(walk, watch)
        assert version in types(walk, versions)
        wait_for(walk, f'loop: finished {version}', STEP_S)
    events = types(walk, history)
    for event in ('gate admitted', 'rollout started', 'promoted', 'watched', 'finished'):
        assert f'{event} {version}' in events, events
    traces = str(tmp_path / 'ros/lerobot_serve/traces/loop')
    assert HOME_TRACES in audit and HOME_TRACES in stats
    found = types(walk, audit.replace(HOME_TRACES, traces), HOLDS)
    for check in ('gated', 'evidence', 'sticky'):
        assert re.search(rf'^holds .*\n +{check}: [1-9]', found, re.M), found
    check_success(types(walk, stats.replace(HOME_TRACES, traces)), version)


def check_success(printed: str, version: str) -> None:
    """The new version reaches its targets more often."""
    found = re.findall(r'^edge, slot \w, (\S+)\n.*?(\d+) of (\d+) with an outcome', printed, re.M)
    digest = version.rpartition('@')[2]
    shares = {policy.endswith(digest): int(good) / int(count) for policy, good, count in found}
    assert shares[True] > shares[False], printed
