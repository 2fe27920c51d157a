# SPDX-License-Identifier: Apache-2.0
"""The exit status of a verb whose output cannot be printed: that of what it did."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
