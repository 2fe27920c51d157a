# SPDX-License-Identifier: Apache-2.0
"""The log of a training command: its lines, and its bounded size."""

from __future__ import annotations

from hypothesis import given
import hypothesis.strategies as st
import pytest

from lerobot_serve.learner.trainers.process.output_log import LINE_LIMIT_BYTES, OutputLog


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('logs')


@given(st.lists(st.sampled_from((b'step:1', b'\n', b'\r', b' loss', b'\x1b[33m')), max_size=30))
def test_lines_do_not_depend_on_the_pieces(folder, pieces):
    whole, cut = (OutputLog(folder / name) for name in ('whole', 'cut'))
    lines = whole.add(b''.join(pieces)) + whole.close()
    assert [line for piece in pieces for line in cut.add(piece)] + cut.close() == lines
    assert (folder / 'whole').read_bytes() == (folder / 'cut').read_bytes() == b''.join(pieces)
    assert whole.last_line == cut.last_line == (lines[-1] if lines else '')
    assert not any('\x1b' in line or '\n' in line for line in lines)


def test_the_log_stays_within_its_size_and_keeps_the_end(tmp_path):
    log = OutputLog(tmp_path / 'train.log', limit_bytes=1000)
    for number in range(500):
        log.add(b'line %d\n' % number)
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ['train.log', 'train.log.1']
    assert sum(file.stat().st_size for file in files) <= 1000
    kept = (tmp_path / 'train.log.1').read_text() + (tmp_path / 'train.log').read_text()
    assert kept.splitlines() == [f'line {n}' for n in range(500)][-len(kept.splitlines()) :]
    assert log.last_line == 'line 499'


def test_a_line_without_an_end_takes_no_memory(tmp_path):
    log = OutputLog(tmp_path / 'train.log')
    for _ in range(100):
        assert log.add(b'x' * 10_000) == []
    assert log.close() == ['x' * LINE_LIMIT_BYTES]
