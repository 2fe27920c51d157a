# SPDX-License-Identifier: Apache-2.0
"""How far long work is: shown on a terminal and only there, and what is read stays the same."""

from __future__ import annotations

import io
import sys

import pytest

from lerobot_serve.tools.cli import progress
from lerobot_serve.tools.traces import reader

LINES = [f'{{"kind":"executed","tick":{number}}}' for number in range(2000)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def trace(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, 'SHOW_ABOVE_BYTES', 1000)
    monkeypatch.setenv('TERM', 'xterm')
    head = '{"kind":"header","schema_version":2,"part":0}'
    (tmp_path / 'edge.jsonl').write_text('\n'.join([head, *LINES, '']))
    return tmp_path / 'edge.jsonl'


def ticks(trace) -> list[object]:
    return [record.get('tick') for _, record in reader.read_records(trace)][1:]


def test_a_terminal_sees_how_much_was_read(trace, monkeypatch):
    monkeypatch.setattr(sys, 'stderr', Terminal())
    moved = []
    real = progress.Progress.update
    monkeypatch.setattr(
        progress.Progress,
        'update',
        lambda self, task, *, advance: moved.append(advance) or real(self, task, advance=advance),
    )
    with progress.show_reading([trace.parent]):
        assert ticks(trace) == list(range(len(LINES)))
    assert sum(moved) == trace.stat().st_size
    assert 'reading' in sys.stderr.getvalue()
    assert ticks(trace)[-1] == len(LINES) - 1
    assert sum(moved) == trace.stat().st_size


@pytest.mark.parametrize('why', ['no terminal', 'little'])
def test_nothing_is_shown_elsewhere_or_for_little(trace, monkeypatch, why):
    monkeypatch.setattr(sys, 'stderr', io.StringIO() if why == 'no terminal' else Terminal())
    if why == 'little':
        monkeypatch.setattr(progress, 'SHOW_ABOVE_BYTES', 10**9)
    with progress.show_reading([trace]):
        assert ticks(trace) == list(range(len(LINES)))
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
    usual = reader.OPEN_PART.get()
    trace.write_text('{"kind":"header","schema_version":99}\n' + 'x' * 2000)
    with pytest.raises(reader.TraceError), progress.show_reading([trace]):
        ticks(trace)
    assert reader.OPEN_PART.get() is usual
