# SPDX-License-Identifier: Apache-2.0
"""Damage of the trace itself is named where it is, and what holds, holds for the recorded part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tools.audit_rig import accusations, drive, of_driving, result_of

from lerobot_serve.tools.audit.engine import CheckStatus, run_audit
from lerobot_serve.tools.audit.report import audit_report

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
