# SPDX-License-Identifier: Apache-2.0
"""Whatever stands in a trace, audit and stats end with a result or with words, with no crash."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from tempfile import TemporaryDirectory
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.tools.audit_rig import drive

from lerobot_serve.tools.audit.checks.check import ROLLOUT_CHECKS
from lerobot_serve.tools.audit.engine import run_audit
from lerobot_serve.tools.audit.report import audit_report
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.stats import time_series
from lerobot_serve.tools.stats.collect import collect_stats
from lerobot_serve.tools.stats.report import html_report, stats_report
from lerobot_serve.trace.format.schema import TraceError

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(2**70), 1e308, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.lists(st.none() | st.integers() | st.text(max_size=1), max_size=3),
    st.just({'slot': ['a']}),
)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_field_may_be_anything(data):
    spoiled = drive(data.draw(st.integers(0, 5)), episodes=2)
    content = data.draw(st.sampled_from([spoiled.edge, spoiled.router]))
    record = data.draw(st.sampled_from(content))
    name = data.draw(st.sampled_from(sorted(record)))
    record[name] = data.draw(JUNK) if name != 'kind' else 'unheard_of'
    with TemporaryDirectory() as folder:
        spoiled.write(Path(folder))
        told(folder)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_field_of_header_and_footer_may_be_anything(data):
    with TemporaryDirectory() as folder:
        edge, _ = drive(1, episodes=1).write(Path(folder))
        lines = edge.read_text().splitlines()
        index = data.draw(st.sampled_from([0, -1]))
        record = json.loads(lines[index])
        name = data.draw(st.sampled_from(sorted(record)))
        record[name] = data.draw(JUNK)
        lines[index] = json.dumps(record)
        edge.write_text('\n'.join(lines) + '\n')
        told(folder)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_byte_may_be_another(data):
    with TemporaryDirectory() as folder:
        edge, _ = drive(1, episodes=1).write(Path(folder))
        content = bytearray(edge.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        edge.write_bytes(content[: data.draw(st.integers(1, len(content)))])
        told(folder)


def told(folder: str) -> None:
    """Look at the results as machines and as people do."""
    try:
        found, stats = run_audit([folder]), collect_stats([folder])
    except TraceError:
        return
    for report in (audit_report(found), stats_report(stats)):
        json.dumps(report.data)
        assert report.as_text()
    assert html_report(stats)


@pytest.mark.slow
@pytest.mark.parametrize(('read', 'growth'), [(run_audit, 1.5), (collect_stats, 2)])
def test_memory_does_not_grow_with_lines(tmp_path, monkeypatch, read, growth):
    # soon full, so that what grows is not they
    monkeypatch.setattr(time_series, 'BINS', 4)
    drive(1, episodes=1).write(tmp_path / 'warm')
    read([tmp_path / 'warm'])
    peaks = []
    for episodes in (80, 320):
        folder = tmp_path / str(episodes)
        drive(1, episodes=episodes).write(folder)
        gc.collect()
        tracemalloc.start()
        read([folder])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # four times the lines
    assert peaks[1] < growth * peaks[0]


def test_the_command_says_how_it_ended(tmp_path, capsys):
    clean = drive(4)
    clean.write(tmp_path / 'clean')
    assert main(['audit', str(tmp_path / 'clean')]) == 0
    assert 'All checks hold.' in capsys.readouterr().out
    clean.edge[clean.index('edge', 'executed', 0, rung='policy')]['age_s'] = 5.0
    edge, _ = clean.write(tmp_path / 'old')
    assert main(['audit', str(tmp_path / 'old')]) == 3
    out = capsys.readouterr().out
    assert 'no executed action is older than max_action_age_s' in out
    assert f'{edge}:{clean.index("edge", "executed", 0, age_s=5.0) + 2}: 5 s old' in out
    clean.edge, clean.router = [], []
    clean.write(tmp_path / 'empty')
    assert main(['audit', str(tmp_path / 'empty')]) == 4
    for words, status, said in (
        ('missing', 1, 'is not a trace'),
        ('clean --show -1', 2, '--show'),
    ):
        assert main(['audit', *f'{tmp_path}/{words}'.split()]) == status
        assert said in capsys.readouterr().err


def test_machines_get_the_same(tmp_path, capsys):
    drive(4).write(tmp_path)
    assert main(['audit', str(tmp_path), '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['outcome'] == 'holds'
    assert {run['role'] for run in found['runs']} == {'edge', 'router'}
    outcomes = {check['check']: check['outcome'] for check in found['checks']}
    rollouts = {outcomes.pop(name) for name in ROLLOUT_CHECKS}
    assert (set(outcomes.values()), rollouts) == ({'holds'}, {'not_judged'})
