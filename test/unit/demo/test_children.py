# SPDX-License-Identifier: Apache-2.0
"""The processes of the demo: what their logs say, which node is which, and the dashboard."""

from __future__ import annotations

import os
from pathlib import Path
import sys
import time
from types import SimpleNamespace

import pytest
from support.waiting import wait_until

from lerobot_serve.demo.child_processes import (
    child_processes,
    ChildProcesses,
    DashboardProcess,
    FleetLog,
    node_of,
    process_ids,
    run_process,
)
from lerobot_serve.demo.tour.link import TypedCommand
from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet.process import ros_arguments
from lerobot_serve.tools.fleet.process_output import PrefixedOutput

LIMIT_S = 20.0


def log_of(*lines: tuple[str, str]) -> FleetLog:
    """Return the log of lines as `up` writes them; those of `up` have no name."""
    log = FleetLog()

    output = PrefixedOutput(
        lambda text: log.add(text.rstrip('\n')), ['a1', 'robot_1.sim'], colours=False
    )
    for name, text in lines:
        output.write(name, text) if name else output.own(text)
    return log


def test_a_process_that_failed_is_named_with_its_last_line():
    log = log_of(
        ('', '2 processes started; Ctrl-C ends them in order'),
        ('a1', 'error: policy_path: no such folder'),
        ('a1', ''),
        ('', 'a1 ended with exit status 1; it is restarted in 1 s'),
    )
    assert log.failure(set()) == (
        'a1 ended with exit status 1; it is restarted in 1 s; last line: error: policy_path: no '
        'such folder'
    )
    assert log.own_lines[0].startswith('2 processes started')


def test_a_process_that_was_killed_on_purpose_is_no_failure():
    log = log_of(('', 'a1 ended with signal SIGKILL; it is restarted in 1 s'))
    assert log.failure({'a1'}) == '' and log.failure({'a2'})
    # a process that prints the same words is not `up`
    assert log_of(('a1', 'a2 ended with exit status 1')).failure(set()) == ''
    assert log_of(('', 'ending robot_1.sim, a1')).failure(set()) == ''


@pytest.mark.parametrize(('namespace', 'node'), [('a1', 'a1/server'), ('', 'server')])
def test_a_node_is_known_by_its_command_line(namespace, node):
    words = ['/py', '/x/lib/lerobot_serve/server']
    assert node_of([*words, *ros_arguments('server', {'slot': 'a'}, namespace=namespace)]) == node


def test_children_are_found_by_their_parent(tmp_path):
    words = [sys.executable, '-c', 'input()', '/x/lib/lerobot_serve/policy_server']
    with child_processes(tmp_path, os.environ) as children:
        child = children.start('a1', [*words[:2], 'import time; time.sleep(60)', *words[3:]])
        wait_until(
            lambda: process_ids(os.getpid()).get('policy_server') == child.process.pid,
            'the process is found',
        )
    assert child.process.returncode is not None
    assert 'policy_server' not in process_ids(os.getpid())


def printing(folder: Path, *scripts: str) -> list[str]:
    """Return a command that runs one script after the other, one at each start."""
    for number, script in enumerate(scripts):
        (folder / f'{number}.py').write_text(script)
    starter = (
        'import pathlib, runpy, sys; n = pathlib.Path(sys.argv[1]); '
        'k = int(n.read_text()) if n.exists() else 0; n.write_text(str(k + 1)); '
        'runpy.run_path(str(n.parent / f"{k}.py"))'
    )
    return [sys.executable, '-c', starter, str(folder / 'count')]


SERVES = (
    'import time; print("dashboard on http://127.0.0.1:1/#token=x", flush=True); time.sleep(60)'
)
TYPED = TypedCommand(0.0, 'serve', 'lerobot-serve dashboard')
TAKEN = 'raise SystemExit("port 8300 is taken")'


def lines_of(dashboard: DashboardProcess, count: int) -> list[str]:
    lines: list[str] = []

    def has_all() -> bool:
        if line := dashboard.poll():
            lines.append(line)
        return len(lines) == count

    wait_until(has_all, 'the dashboard says so')
    return lines


@pytest.fixture
def started(tmp_path):
    """Starts a dashboard that runs these scripts, one at each start."""
    with child_processes(tmp_path, os.environ) as children:

        def start(*scripts: str) -> tuple[DashboardProcess, ChildProcesses]:
            dashboard = DashboardProcess(children, printing(tmp_path, *scripts), TYPED)
            dashboard.start()
            return dashboard, children

        yield start


def test_the_address_is_shown(started):
    dashboard, _ = started(SERVES)
    assert lines_of(dashboard, 1) == ['dashboard: http://127.0.0.1:1/#token=x']
    assert dashboard.address == 'http://127.0.0.1:1/#token=x'


def test_a_port_that_is_taken_leads_to_a_free_one(started):
    dashboard, children = started(TAKEN, SERVES)
    assert lines_of(dashboard, 1) == ['dashboard: http://127.0.0.1:1/#token=x']
    assert children.children['dashboard'].process.args[-2:] == ['--port', '0']


def test_a_dashboard_that_cannot_start_is_one_line(started):
    dashboard, _ = started(TAKEN, TAKEN)
    assert lines_of(dashboard, 1) == ['the dashboard has ended: port 8300 is taken']
    assert dashboard.poll() == '' and dashboard.address == ''


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
