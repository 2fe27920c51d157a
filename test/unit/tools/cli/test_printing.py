# SPDX-License-Identifier: Apache-2.0
"""What a verb prints, on a terminal or into nothing; its status, and the end of its processes."""

from __future__ import annotations

import io
import os
from pathlib import Path
import shutil
import subprocess
import sys

import pytest
from support.paths import REPOSITORY
from support.processes.alive import is_alive
from support.waiting import wait_until

from lerobot_serve.tools.cli import progress
from lerobot_serve.tools.cli.progress import progress_text
from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve.tools.traces.reader import ReportBytes
from lerobot_serve.tools.traces.trace_run import TraceQuery
from lerobot_serve.trace.format.run_files import SCHEMA_VERSION, TraceError

ROUTE = 'sys.exit(main(["route", "--split", "50", "ep_ü"]))'
REFUSED = 'sys.exit(main(["route", "--split", "101", "--json", "ep"]))'
# a command that is done, with a result to print
DONE = """
from argparse import Namespace
from lerobot_serve.tools.cli.signature import print_report
from lerobot_serve.tools.operate.outcome import Result
options = Namespace(json=False, verb='split')
sys.exit(print_report(Result('split', '/r', 'done', 'kim').report(), options))
"""


def run(code: str, output: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code as a process whose output is buffered, unless the environment says otherwise."""
    kept = {key: value for key, value in os.environ.items() if key != 'PYTHONUNBUFFERED'}
    return subprocess.run(
        [
            sys.executable,
            '-c',
            f'import sys\nfrom lerobot_serve.tools.cli.main import main\n{code}',
        ],
        env={**kept, **environment},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def closed():
    """A pipe whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full():
    handle = os.open('/dev/full', os.O_WRONLY)
    yield handle
    os.close(handle)


@pytest.mark.parametrize('buffered', [{}, {'PYTHONUNBUFFERED': '1'}])
@pytest.mark.parametrize(
    ('output', 'why'), [('closed', 'Broken pipe'), ('full', 'No space left on device')]
)
def test_a_command_that_is_done_ends_so(request, output, why, buffered):
    ended = run(DONE, request.getfixturevalue(output), **buffered)
    assert ended.returncode == 0
    assert ended.stderr == f'lerobot-serve split: done; the result cannot be printed: {why}\n'


@pytest.mark.parametrize('buffered', [{}, {'PYTHONUNBUFFERED': '1'}])
def test_a_verb_that_prints_ends_with_a_status_of_the_table(closed, full, buffered):
    ended = run(ROUTE, closed, **buffered)
    assert (ended.returncode, ended.stderr) == (1, '')
    ended = run(ROUTE, full, **buffered)
    assert ended.returncode == 1
    assert ended.stderr == 'lerobot-serve route: [Errno 28] No space left on device\n'


@pytest.mark.parametrize('buffered', [{}, {'PYTHONUNBUFFERED': '1'}])
@pytest.mark.parametrize('output', ['closed', 'full'])
def test_a_refusal_that_cannot_be_printed_as_json_is_said_once(request, output, buffered):
    ended = run(REFUSED, request.getfixturevalue(output), **buffered)
    assert ended.returncode == 2
    assert ended.stderr == 'lerobot-serve route: --split must be in [0, 100], got 101\n'


def test_a_name_that_the_terminal_cannot_show_is_printed_as_its_code():
    ended = run(ROUTE, subprocess.DEVNULL, PYTHONIOENCODING='ascii')
    assert (ended.returncode, ended.stderr) == (0, '')


LINES = [f'{{"kind":"executed","control_step":{number}}}' for number in range(2000)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, 'SHOW_ABOVE_BYTES', 1000)
    monkeypatch.setenv('TERM', 'xterm')
    head = f'{{"kind":"header","schema_version":{SCHEMA_VERSION},"part":0}}'
    (tmp_path / 'edge.jsonl').write_text('\n'.join([head, *LINES, '']))
    return tmp_path / 'edge.jsonl'


def steps(trace, on_bytes_read: ReportBytes | None = None) -> list[object]:
    entries = list(TraceQuery([trace], on_bytes_read=on_bytes_read).by_run())
    return [entry.record.control_step for entry in entries[1:]]


def test_a_terminal_sees_how_much_was_read(trace, monkeypatch):
    monkeypatch.setattr(sys, 'stderr', Terminal())
    moved = []
    real = progress.Progress.update
    monkeypatch.setattr(
        progress.Progress,
        'update',
        lambda self, task, *, advance: moved.append(advance) or real(self, task, advance=advance),
    )
    with progress.show_reading([trace.parent]) as on_bytes_read:
        assert steps(trace, on_bytes_read) == list(range(len(LINES)))
    assert sum(moved) == trace.stat().st_size
    assert 'reading' in sys.stderr.getvalue()


@pytest.mark.parametrize('why', ['no terminal', 'little'])
def test_nothing_is_shown_elsewhere_or_for_little(trace, monkeypatch, why):
    monkeypatch.setattr(sys, 'stderr', io.StringIO() if why == 'no terminal' else Terminal())
    if why == 'little':
        monkeypatch.setattr(progress, 'SHOW_ABOVE_BYTES', 10**9)
    with progress.show_reading([trace]) as on_bytes_read:
        assert on_bytes_read is None
    if why == 'no terminal':
        assert list(progress.show_count(range(3), 3, 'asking')) == [0, 1, 2]
        with progress.show_spinner('simulating'):
            pass
    assert sys.stderr.getvalue() == ''


def test_items_are_counted(trace, monkeypatch):
    monkeypatch.setattr(sys, 'stderr', Terminal())
    assert list(progress.show_count(iter('abc'), 3, 'asking')) == ['a', 'b', 'c']
    assert '3/3' in sys.stderr.getvalue()


def test_the_bar_goes_when_reading_fails(trace, monkeypatch):
    monkeypatch.setattr(sys, 'stderr', Terminal())
    trace.write_text('{"kind":"header","schema_version":99}\n' + 'x' * 2000)
    with pytest.raises(TraceError), progress.show_reading([trace]) as on_bytes_read:
        steps(trace, on_bytes_read)
    # the bar is erased
    assert sys.stderr.getvalue().endswith('\x1b[2K') or '\x1b[2K' in sys.stderr.getvalue()


@pytest.mark.parametrize(
    ('done_gb', 'text'),
    [
        (0.0, 'reading 0 %  0.00 of 2.00 GB  0 MB/s  0:00 left'),
        (0.5, 'reading 25 %  0.50 of 2.00 GB  50 MB/s  0:30 left'),
        # the files are compressed
        (6.0, 'reading 100 %  2.00 of 2.00 GB  600 MB/s  0:00 left'),
    ],
)
def test_a_conversion_is_never_more_than_done(done_gb, text):
    assert progress_text('reading', int(done_gb * 1e9), 2 * 10**9, 10.0) == text


# starts a child, says its number, and waits to be killed
PARENT = """
import subprocess, sys
from lerobot_serve.tools.processes import end_with_parent
child = subprocess.Popen(end_with_parent(['sleep', '600']))
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not shutil.which('setpriv'), reason='needs setpriv of util-linux')
def test_a_child_ends_when_its_parent_is_killed():
    root = REPOSITORY
    with subprocess.Popen(
        [sys.executable, '-c', PARENT],
        env={**os.environ, 'PYTHONPATH': str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        child = int(parent.stdout.readline())
        wait_until(lambda: b'sleep' in Path(f'/proc/{child}/comm').read_bytes(), 'it begins')
        parent.kill()
    wait_until(lambda: not is_alive(child), f'process {child} outlives its parent')


def test_the_child_is_the_command_itself():
    command = [sys.executable, '-c', 'import os; print(os.getpid())']
    with subprocess.Popen(end_with_parent(command), stdout=subprocess.PIPE) as child:
        assert int(child.stdout.read()) == child.pid


def test_without_setpriv_the_command_is_started_as_it_is(monkeypatch):
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    assert end_with_parent(('sleep', '1')) == ['sleep', '1']
