# SPDX-License-Identifier: Apache-2.0
"""Damage of a trace is named where it is, and never more than that is said of a robot."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from tempfile import TemporaryDirectory
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.tools.audit_rig import accusations, drive, of_driving, result_of

from lerobot_serve.tools.audit.check import ROLLOUT_CHECKS
from lerobot_serve.tools.audit.engine import CheckStatus, run_audit
from lerobot_serve.tools.audit.report import audit_report
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.stats import aggregates
from lerobot_serve.tools.stats.collect import collect_stats
from lerobot_serve.tools.stats.report import html_report, stats_report
from lerobot_serve.trace.format.run_files import TraceError

# a drive of several parts, when they are small
SEED = 4


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def footer(path: Path, **fields: object) -> None:
    *rest, last = lines(path)
    changed = json.dumps(json.loads(last) | fields, separators=(',', ':')).encode() + b'\n'
    path.write_bytes(b''.join([*rest, changed]))


def garble(path: Path) -> int:
    content = lines(path)
    index = next(i for i, line in enumerate(content) if b'"executed"' in line)
    content[index] = b'{"kind":\n'
    path.write_bytes(b''.join(content))
    return index + 1


def without_footer(path: Path) -> int:
    *rest, _ = lines(path)
    path.write_bytes(b''.join(rest))
    return len(rest)


def torn(path: Path) -> int:
    *rest, last = lines(path)
    path.write_bytes(b''.join([*rest, last[:20]]))
    return len(rest) + 1


def miscounted(path: Path) -> int:
    count = len(lines(path))
    footer(path, records=count)
    return count


def goes_on(path: Path) -> int:
    footer(path, end_reason='rotated')
    return len(lines(path))


def lost(path: Path) -> int:
    header, *rest, _ = lines(path)
    drop = b'{"kind":"drop","mono_ns":1,"reason":"trace_overflow","count":3,"item":"state"}\n'
    end = {'kind': 'footer', 'records': len(rest) + 1, 'records_lost': {'trace_overflow': 3}}
    ends = json.dumps(end | {'mono_ns': 2, 'end_reason': 'closed'}).encode() + b'\n'
    path.write_bytes(b''.join([header, *rest, drop, ends]))
    return len(rest) + 2


def lost_and_not_told(path: Path) -> int:
    footer(path, records_lost={'trace_failed': 2})
    return len(lines(path))


# what is missing is incomplete, what is wrong is violated
DAMAGES = {
    'garbled': ('whole', garble, CheckStatus.VIOLATED),
    'no footer': ('whole', without_footer, CheckStatus.INCOMPLETE),
    'killed': ('whole', torn, CheckStatus.INCOMPLETE),
    'miscounted': ('whole', miscounted, CheckStatus.VIOLATED),
    'continues': ('whole', goes_on, CheckStatus.INCOMPLETE),
    'lost': ('whole', lost, CheckStatus.INCOMPLETE),
    'lost and not told': ('drops', lost_and_not_told, CheckStatus.VIOLATED),
}


@pytest.mark.parametrize('name', DAMAGES)
def test_damage_of_the_trace_itself(tmp_path, name):
    check, spoil, outcome = DAMAGES[name]
    edge, _ = drive(SEED).write(tmp_path)
    line = spoil(edge)
    found = run_audit([tmp_path])
    assert accusations(found) == [(check, str(edge), line)]
    # of a trace with holes nothing more can be said
    driving = {r.outcome for r in of_driving(found) if r.check not in ('whole', 'drops')}
    assert driving == {CheckStatus.HOLDS_AS_RECORDED}
    result, is_wrong = result_of(found, check), outcome is CheckStatus.VIOLATED
    assert (result.violations, result.gaps) == ((1, 0) if is_wrong else (0, 1))
    assert found.outcome is outcome
    report = audit_report(found)
    assert report.status == (3 if is_wrong else 5)
    assert ('VIOLATED' in report.as_text()) == is_wrong
    assert ('1 missing' in report.as_text()) == (not is_wrong)


def many_parts(folder: Path) -> list[Path]:
    drive(SEED, episodes=8).write(folder, limit_bytes=4096)
    parts = [folder / 'edge.jsonl', *(folder / f'edge.{n}.jsonl' for n in range(1, 4))]
    assert all(part.is_file() for part in parts)
    return parts


def gone(path: Path) -> int:
    path.unlink()
    return 0


@pytest.mark.parametrize(
    ('spoil', 'number', 'named'),
    # one that is gone is missed where the next begins, another one is named at its own end
    [(gone, 2, 3), (without_footer, 1, 1), (torn, 2, 2)],
)
def test_a_damaged_part_is_named_once(tmp_path, spoil, number, named):
    parts = many_parts(tmp_path)
    line = spoil(parts[number]) or 1
    assert accusations(run_audit([tmp_path])) == [('whole', str(parts[named]), line)]


@pytest.mark.parametrize(
    ('spoil', 'words'),
    [(without_footer, 'killed or still running'), (torn, 'torn'), (goes_on, 'continues after')],
)
def test_how_a_run_ended_is_said(tmp_path, spoil, words):
    edge, _ = drive(SEED).write(tmp_path)
    spoil(edge)
    result = result_of(run_audit([tmp_path]), 'whole')
    assert [words in violation.text for violation in result.shown] == [True]


def test_a_violation_is_no_less_one_because_the_trace_is_incomplete(tmp_path):
    edge, _ = drive(SEED).write(tmp_path)
    garble(edge)
    without_footer(edge)
    found = run_audit([tmp_path])
    assert found.outcome is CheckStatus.VIOLATED


def test_an_empty_file_is_incomplete_and_named(tmp_path):
    drive(SEED).write(tmp_path)
    empty = tmp_path / 'robot_7.jsonl'
    empty.touch()
    found = run_audit([tmp_path])
    assert found.outcome is CheckStatus.INCOMPLETE
    shown = [(v.file, v.text) for v in result_of(found, 'whole').shown]
    assert shown == [(str(empty), 'no footer: the file is empty')]
    assert [run.path.name for run in found.runs if not run.is_complete] == [empty.name]


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
    monkeypatch.setattr(aggregates, 'BINS', 4)
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
    wrong = (('missing', 1, 'is not a trace'), ('clean --show -1', 2, '--show'))
    for words, status, said in wrong:
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
