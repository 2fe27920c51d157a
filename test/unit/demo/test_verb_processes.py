# SPDX-License-Identifier: Apache-2.0
"""A verb of an act runs as a process: its output, its failure, and its end with the demo."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest

from lerobot_serve.demo.tour.commands import TypedCommand
from lerobot_serve.demo.tour.verb_process import run_process
from lerobot_serve.errors import UserError


def typed() -> TypedCommand:
    return TypedCommand(1.0, 'kill', 'lerobot-serve robots')


def waiting(until, *_: object) -> None:
    while not until():
        time.sleep(0.01)


def script(text: str) -> list[str]:
    return [sys.executable, '-c', text]


def test_the_output_of_both_streams_is_kept_in_whole_lines():
    command = typed()
    run_process(
        script('import sys; print("one\\ntwo"); print("three", file=sys.stderr)'),
        {},
        command,
        waiting,
    )
    assert sorted(command.lines) == ['one', 'three', 'two'] and command.status == 0


def test_a_verb_that_fails_is_named_with_its_last_line():
    with pytest.raises(UserError) as failed:
        run_process(script('raise SystemExit("no router")'), {}, typed(), waiting)
    assert str(failed.value) == '`lerobot-serve robots` ended with status 1: no router'


@pytest.mark.parametrize('ended_by', [KeyboardInterrupt, UserError])
def test_a_verb_ends_when_the_demo_does(ended_by):
    seen = SimpleNamespace(command=typed())

    def interrupted(until, *_: object) -> None:
        waiting(lambda: until() or seen.command.lines)
        raise ended_by

    begin_s = time.monotonic()
    with pytest.raises(ended_by):
        run_process(
            script('print("began", flush=True); import time; time.sleep(600)'),
            {},
            seen.command,
            interrupted,
        )
    assert seen.command.lines == ['began']
    # run_process returns after the end of the process
    assert time.monotonic() - begin_s < 60
