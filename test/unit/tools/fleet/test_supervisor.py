# SPDX-License-Identifier: Apache-2.0
"""A supervisor with real processes: output, restarts, the order of the end, two Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
import io
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from support.waiting import wait_until

from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet import process, supervisor
from lerobot_serve.tools.fleet.process import FleetProcess, Stage
from lerobot_serve.tools.fleet.process_output import PrefixedOutput, QueuedLines, write_all
from lerobot_serve.tools.fleet.supervisor import status_text, Supervisor

# says that it runs, waits for SIGINT as a node does, says goodbye
NODE = """
import signal, sys
print('ready', flush=True)
signal.sigwait({signal.SIGINT})
print('bye', flush=True)
"""
STUBBORN = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
print('ready', flush=True)
while True: signal.pause()
"""
LIMIT_S = 60.0


class Fleet:
    """A supervisor in this process with one script for each process, and what it writes."""

    def __init__(self, scripts: dict[str, tuple[Stage, str]]) -> None:
        self._scripts = {name: script for name, (_, script) in scripts.items()}
        self._stream = io.StringIO()
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {name: [] for name in scripts}
        plan = [
            FleetProcess(name, stage, 'policy_server', '', {})
            for name, (stage, _) in scripts.items()
        ]
        output = PrefixedOutput(self._stream.write, scripts, colours=False)
        self.supervisor = Supervisor(plan, self._start, output)

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Name and text of each line until now."""
        return [
            (name.strip(), text)
            for name, _, text in (
                line.partition(' | ') for line in self._stream.getvalue().splitlines()
            )
        ]

    def said(self, name: str) -> list[str]:
        return [text for each, text in self.lines if each == name]

    def _start(self, process: FleetProcess) -> subprocess.Popen[bytes]:
        started = subprocess.Popen(
            [sys.executable, '-u', '-c', self._scripts[process.name]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes[process.name].append(started)
        return started

    def run(self, script: Callable[[], None] | None = None) -> int:
        """Run in this thread, with `script` in another one; return the exit status."""
        errors: list[BaseException] = []

        def guarded() -> None:
            try:
                if script:
                    script()
            except BaseException as error:
                errors.append(error)
                for _ in range(2):
                    interrupt()

        other = threading.Thread(target=guarded)
        other.start()
        try:
            status = self.supervisor.run()
        finally:
            other.join(LIMIT_S)
        assert not errors, (errors, self._stream.getvalue())
        return status


def interrupt() -> None:
    """Press Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def fleet() -> Callable[..., Fleet]:
    before = signal.getsignal(signal.SIGINT)
    yield lambda **scripts: Fleet(scripts)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(process, 'FIRST_DELAY_S', 0.01)
    monkeypatch.setattr(process, 'LONGEST_DELAY_S', 0.01)


def test_ctrl_c_ends_robots_then_simulations_then_router_then_servers(fleet):
    running = fleet(
        server=(Stage.SERVER, NODE),
        router=(Stage.ROUTER, NODE),
        sim=(Stage.SIMULATION, NODE),
        robot=(Stage.ROBOT, NODE),
    )

    def script() -> None:
        wait_until(lambda: all(running.said(n) for n in running.processes), 'all are ready')
        interrupt()

    assert running.run(script) == 0
    ends = [name for name, text in running.lines if text == 'bye']
    assert ends == ['robot', 'sim', 'router', 'server']
    # a stage begins when the one before has ended
    begins = [text for name, text in running.lines if name == 'up' and text.startswith('ending')]
    assert begins == ['ending robot', 'ending sim', 'ending router', 'ending server']
    order = [line for line in running.lines if line[1] == 'bye' or line[1].startswith('ending')]
    assert order[0] == ('up', 'ending robot') and order[1] == ('robot', 'bye')
    assert order[2] == ('up', 'ending sim')


def test_a_second_ctrl_c_kills(fleet, monkeypatch):
    monkeypatch.setattr(supervisor, 'STAGE_LIMIT_S', 1e6)
    running = fleet(server=(Stage.SERVER, NODE), robot=(Stage.ROBOT, STUBBORN))

    def script() -> None:
        wait_until(lambda: running.said('server') and running.said('robot'), 'both are ready')
        interrupt()
        wait_until(lambda: 'ending robot' in running.said('up'), 'the end begins')
        interrupt()

    assert running.run(script) == 1
    assert 'robot is killed' in running.said('up')
    assert running.processes['robot'][0].returncode == -signal.SIGKILL
    assert running.processes['server'][0].returncode is not None


def test_a_process_that_does_not_end_is_killed_after_the_limit(fleet, monkeypatch):
    monkeypatch.setattr(supervisor, 'STAGE_LIMIT_S', 0.2)
    running = fleet(server=(Stage.SERVER, NODE), robot=(Stage.ROBOT, STUBBORN))

    def script() -> None:
        wait_until(lambda: running.said('server') and running.said('robot'), 'both are ready')
        interrupt()

    assert running.run(script) == 1
    assert running.processes['robot'][0].returncode == -signal.SIGKILL
    # the stages behind it still end in order
    assert running.said('server') == ['ready', 'bye']


def test_what_is_killed_is_started_again(fleet):
    running = fleet(server=(Stage.SERVER, NODE))

    def script() -> None:
        wait_until(lambda: running.said('server') == ['ready'], 'the first is ready')
        running.processes['server'][0].kill()
        wait_until(lambda: running.said('server') == ['ready', 'ready'], 'the second is ready')
        interrupt()

    assert running.run(script) == 0
    assert 'server ended with signal SIGKILL; it is restarted in 0.01 s' in running.said('up')
    assert len(running.processes['server']) == 2


def test_a_mistake_of_the_user_ends_the_fleet_after_three_attempts(fleet):
    mistake = "import sys; sys.exit(print('error: no policy') or 1)"
    running = fleet(server=(Stage.SERVER, mistake), robot=(Stage.ROBOT, NODE))
    assert running.run() == 1
    assert running.said('server') == ['error: no policy'] * 3
    assert running.said('up')[-3:] == [
        'server ended with exit status 1, 3 times in a row soon after its start; it is not '
        'restarted. Its last line: error: no policy',
        'the fleet cannot run without its servers; ending',
        'ending robot',
    ]
    assert running.processes['robot'][0].returncode is not None


@pytest.mark.parametrize('stage', [Stage.LEARNER, Stage.LOOP])
def test_without_learner_or_loop_the_fleet_goes_on(fleet, stage):
    mistake = "import sys; sys.exit(print('error: no trainer') or 1)"
    running = fleet(robot=(Stage.ROBOT, NODE), teacher=(stage, mistake))

    def script() -> None:
        wait_until(lambda: running.said('robot') == ['ready'], 'the robot is ready')
        wait_until(lambda: any('is not restarted' in t for t in running.said('up')), 'given up')
        time.sleep(0.3)
        interrupt()

    assert running.run(script) == 1
    assert running.said('robot') == ['ready', 'bye']
    assert not any('cannot run without' in text for text in running.said('up'))


def test_every_stage_of_a_fleet_is_needed_or_teaches():
    assert set(supervisor.WORDS) == {*supervisor.NEEDED, Stage.LEARNER, Stage.LOOP}


def test_another_server_goes_on_and_the_exit_status_says_that_one_failed(fleet):
    running = fleet(bad=(Stage.SERVER, 'raise SystemExit(1)'), good=(Stage.SERVER, NODE))

    def script() -> None:
        wait_until(lambda: any('not restarted' in s for s in running.said('up')), 'it gives up')
        wait_until(lambda: running.said('good'), 'the good one is ready')
        interrupt()

    assert running.run(script) == 1
    assert running.said('good') == ['ready', 'bye']
    assert len(running.processes['bad']) == 3


def test_what_an_operator_stopped_is_not_restarted(fleet):
    running = fleet(one=(Stage.SERVER, NODE), two=(Stage.SERVER, NODE))

    def script() -> None:
        wait_until(lambda: running.said('one') and running.said('two'), 'both are ready')
        running.processes['one'][0].send_signal(signal.SIGINT)
        wait_until(lambda: any('ended in order' in s for s in running.said('up')), 'it is left')
        interrupt()

    assert running.run(script) == 0
    assert len(running.processes['one']) == 1


def test_when_all_have_ended_in_order_so_does_the_fleet(fleet):
    running = fleet(one=(Stage.SERVER, "print('done')"))
    assert running.run() == 0
    assert running.said('one') == ['done']


def test_the_last_words_without_a_line_end_are_written(fleet):
    running = fleet(one=(Stage.SERVER, "print('x' * 200000); print('last', end='')"))
    assert running.run() == 0
    assert running.said('one')[-1] == 'last'
    assert sum(map(len, running.said('one'))) == 200004


def test_a_process_that_cannot_be_started_leaves_no_other(fleet, monkeypatch):
    running = fleet(one=(Stage.SERVER, NODE), two=(Stage.ROBOT, NODE))
    start = running.supervisor._start_process

    def fail(process: FleetProcess) -> subprocess.Popen[bytes]:
        if process.name == 'two':
            raise OSError('no memory')
        return start(process)

    monkeypatch.setattr(running.supervisor, '_start_process', fail)
    with pytest.raises(OSError, match='no memory'):
        running.run()
    # in order: it may be a robot that moves
    assert running.processes['one'][0].returncode == 0


def test_without_a_reader_the_fleet_ends_in_order(fleet, monkeypatch):
    running = fleet(one=(Stage.SERVER, NODE))

    def refuse(name: str, line: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(running.supervisor._output, 'write', refuse)

    def script() -> None:
        wait_until(lambda: running.processes['one'], 'it is started')
        wait_until(lambda: running.processes['one'][0].returncode is not None, 'it is ended')

    # as soon as it writes its first line
    assert running.run(script) == 0
    assert running.processes['one'][0].returncode == 0


@pytest.mark.parametrize(
    ('status', 'text'), [(1, 'exit status 1'), (-9, 'signal SIGKILL'), (-200, 'signal 200')]
)
def test_an_exit_status_in_words(status, text):
    assert status_text(status) == text


class ClosedStream(io.StringIO):
    """A terminal that is closed once the fleet runs."""

    def write(self, text: str) -> int:
        if 'ready' in self.getvalue():
            raise OSError('closed')
        return super().write(text)


# ends in order only when it gets SIGINT
NOTED = """
import pathlib, signal
print('ready', flush=True)
signal.sigwait({{signal.SIGINT}})
pathlib.Path({file!r}).write_text('at rest')
"""


def test_a_terminal_that_is_closed_ends_the_fleet_in_order(fleet, tmp_path):
    file = tmp_path / 'robot'
    running = fleet(robot=(Stage.ROBOT, NOTED.format(file=str(file))))
    stream = ClosedStream()
    running.supervisor._output = PrefixedOutput(stream.write, ['robot'], colours=False)
    # the child writes once more, to a terminal that has gone
    running._scripts['robot'] = running._scripts['robot'].replace(
        "print('ready', flush=True)", "print('ready', flush=True); print('more', flush=True)"
    )
    assert running.run() == 0
    assert file.read_text() == 'at rest'


@pytest.mark.parametrize(
    'error', [OSError(11, 'Resource temporarily unavailable'), UserError('x')]
)
def test_a_restart_that_fails_leaves_the_others_alone(fleet, tmp_path, monkeypatch, error):
    file = tmp_path / 'robot'
    running = fleet(
        server=(Stage.SERVER, 'raise SystemExit(3)'),
        robot=(Stage.ROBOT, NOTED.format(file=str(file))),
    )
    start = running._start

    def start_once(process):
        if process.name == 'server' and running.processes['server']:
            raise error
        return start(process)

    monkeypatch.setattr(running.supervisor, '_start_process', start_once)
    assert running.run() == 1
    assert any('server cannot be started' in text for _, text in running.lines)
    assert file.read_text() == 'at rest'


def test_an_error_of_the_supervisor_brings_robots_to_rest(fleet, tmp_path, monkeypatch):
    file = tmp_path / 'robot'
    running = fleet(robot=(Stage.ROBOT, NOTED.format(file=str(file))))
    step = running.supervisor._step

    def fails_once():
        step()
        if running.said('robot') and not file.exists():
            monkeypatch.setattr(running.supervisor, '_step', step)
            raise RuntimeError('a fault')

    monkeypatch.setattr(running.supervisor, '_step', fails_once)
    with pytest.raises(RuntimeError, match='a fault'):
        running.run()
    assert file.read_text() == 'at rest'


# writes more than any pipe holds, and comes to rest in order
TALKS = """
import pathlib, signal, sys
for number in range(20000):
    print('x' * 100)
pathlib.Path({file!r}).write_text('talked')
signal.sigwait({{signal.SIGINT}})
pathlib.Path({file!r}).write_text('at rest')
"""


def test_a_reader_that_stops_reading_stops_no_node_and_ctrl_c_ends_in_order(fleet, tmp_path):
    """As after Ctrl-S, in a pager, or over a connection that hangs."""
    file = tmp_path / 'robot'
    running = fleet(robot=(Stage.ROBOT, TALKS.format(file=str(file))))
    read_end, write_end = os.pipe()
    lines = QueuedLines(lambda text: write_all(write_end, text.encode()), str)
    running.supervisor._output = PrefixedOutput(lines.write, ['robot'], colours=False)

    def script() -> None:
        wait_until(lambda: file.exists() and file.read_text() == 'talked', 'it talks on', LIMIT_S)
        interrupt()

    assert running.run(script) == 0
    assert file.read_text() == 'at rest'
    assert lines.close(0.01) is False
    os.close(read_end)
    wait_until(lambda: lines._error, 'the writer has ended')
    os.close(write_end)


def test_what_a_process_leaves_behind_does_not_keep_the_fleet(fleet, monkeypatch):
    """A process that inherited its output writes on for ever."""
    running = fleet(server=(Stage.SERVER, "print('done')"))
    pieces: list[bool] = []

    def read_more(child: supervisor.Child) -> bool:
        pieces.append(child.running.poll() is not None)
        # the process gets the time that it needs to start and to end on a busy machine
        time.sleep(0.001)
        assert len(pieces) < 30_000
        return True

    monkeypatch.setattr(running.supervisor, '_read', read_more)
    assert running.run() == 0
    assert any(pieces)


@pytest.mark.parametrize(
    ('handler', 'is_handled'), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)]
)
def test_nohup_stays_in_force(handler, is_handled):
    before = signal.signal(signal.SIGHUP, handler)
    try:
        assert (signal.SIGHUP in supervisor.stop_signals()) is is_handled
        assert signal.SIGINT in supervisor.stop_signals()
    finally:
        signal.signal(signal.SIGHUP, before)
