# SPDX-License-Identifier: Apache-2.0
"""A rollout of the page has an end, whatever its thread meets."""

from __future__ import annotations

import contextlib
import threading

import pytest
from support.waiting import wait_until

from lerobot_serve.tools.dashboard import command_runner
from lerobot_serve.tools.dashboard.command_runner import CommandRunner, Loading, UNKNOWN
from lerobot_serve.tools.dashboard.planned_commands import CommandRequest, START

ROUTER, LIMIT_S = '/policy_router', 20.0


def failing(*_: object) -> None:
    raise RuntimeError('the context is gone')


@contextlib.contextmanager
def client(*_: object):
    yield None


@pytest.mark.parametrize('open_client', [failing, client])
def test_an_unexpected_error_ends_a_rollout_with_no_known_result(open_client, monkeypatch):
    steps: list[Loading] = []
    lines: list[str] = []
    raised: list[object] = []
    monkeypatch.setattr(threading, 'excepthook', raised.append)
    monkeypatch.setattr(command_runner, 'run_loading', failing)
    runner = CommandRunner(
        None, open_client, lines.append, failing, lambda _, step: steps.append(step)
    )
    held = contextlib.ExitStack()
    held.enter_context(runner._held(ROUTER))
    begun = Loading(1, START, 'ann (dashboard)', 'start it')
    runner._start_loading(CommandRequest(START, ROUTER), ROUTER, begun, ('ann', '::1'), held)
    wait_until(lambda: len(steps) == 2 or raised, 'it has ended', LIMIT_S)
    assert not raised and steps[0] == begun
    assert (steps[1].number, steps[1].state) == (1, UNKNOWN)
    assert 'the result is not known' in steps[1].text
    assert 'the context is gone' in steps[1].text
    assert 'Traceback' in lines[0] and ': 504 the result' in lines[1]
    # the next command may come
    with runner._held(ROUTER):
        pass
