# SPDX-License-Identifier: Apache-2.0
"""How far long work is: shown on a terminal and only there, and what is read stays the same."""

from __future__ import annotations

import io
import sys

import pytest

from lerobot_serve.tools.cli import progress
from lerobot_serve.tools.cli.progress import progress_text
from lerobot_serve.tools.traces.query import TraceQuery
from lerobot_serve.tools.traces.reader import ReportBytes
from lerobot_serve.trace.format.schema import SCHEMA_VERSION, TraceError

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
