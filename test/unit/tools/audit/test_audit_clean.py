# SPDX-License-Identifier: Apache-2.0
"""A robot that was driven by the rules is never accused, and what is unknown is never praised."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.edge.cage_rig import robots
from support.tools.audit_rig import accusations, drive, LIMITS, of_driving, result_of

from lerobot_serve.tools.audit.checks.check import CHECKS, ROLLOUT_CHECKS
from lerobot_serve.tools.audit.engine import CheckStatus, run_audit
from lerobot_serve.trace.format.schema import TraceError


def outcomes(folder: Path) -> dict[str, CheckStatus]:
    return {result.check: result.outcome for result in run_audit([folder]).results}


def test_a_clean_fleet_holds_in_all_checks(tmp_path):
    for number in range(3):
        drive(number, client=f'robot_{number}', episodes=6).write(tmp_path / str(number))
    found = run_audit([tmp_path])
    assert accusations(found) == []
    assert {result.check: result.outcome for result in of_driving(found)} == dict.fromkeys(
        set(CHECKS) - ROLLOUT_CHECKS, CheckStatus.HOLDS
    )
    assert found.outcome is CheckStatus.HOLDS
    assert (found.episodes, found.joined) == (18, 18)


@given(
    seed=st.integers(0, 2**32),
    episodes=st.integers(1, 5),
    requests=st.integers(1, 5),
    rows=st.integers(1, 6),
    part_bytes=st.sampled_from([4096, 1 << 20]),
    limits=robots() | st.just(LIMITS),
)
@settings(max_examples=25, deadline=None)
def test_no_clean_trace_is_accused(seed, episodes, requests, rows, part_bytes, limits):
    clean = drive(seed, episodes=episodes, requests=requests, rows=rows, limits=limits)
    with TemporaryDirectory() as folder:
        clean.write(Path(folder), limit_bytes=part_bytes)
        found = run_audit([folder])
    assert accusations(found) == []


def test_a_trace_that_tells_nothing_is_not_judged(tmp_path):
    clean = drive()
    clean.edge, clean.router = [], []
    clean.write(tmp_path)
    found = run_audit([tmp_path])
    judged = {r.check for r in found.results if r.outcome is not CheckStatus.NOT_JUDGED}
    assert judged == {'whole', 'drops'}
    assert all(result.why_not for result in found.results if result.check not in judged)
    assert found.outcome is CheckStatus.NOT_JUDGED


@pytest.mark.parametrize(
    ('parameter', 'checks'),
    [('max_action_age_s', {'age'}), ('limits', {'position', 'step'})],
)
def test_without_a_bound_what_it_bounds_is_not_judged(tmp_path, parameter, checks):
    clean = drive(1)
    del clean.parameters[parameter]
    clean.write(tmp_path)
    found = run_audit([tmp_path])
    assert {r.check for r in of_driving(found) if r.outcome is CheckStatus.NOT_JUDGED} == checks
    assert all(parameter in r.why_not for r in found.results if r.check in checks)
    assert found.outcome is CheckStatus.HOLDS_AS_RECORDED


@pytest.mark.parametrize('limits', ['no json', '[]', '{}', 7, {'step_s': 1, 'actions': [3]}])
def test_limits_that_make_no_sense_are_no_limits(tmp_path, limits):
    clean = drive(1)
    clean.parameters['limits'] = limits
    clean.write(tmp_path)
    assert outcomes(tmp_path)['position'] is CheckStatus.NOT_JUDGED


def test_limits_may_be_an_object(tmp_path):
    clean = drive(1)
    clean.parameters['limits'] = {'step_s': 1, 'actions': [{'motion': 'position'}] * 3}
    clean.write(tmp_path)
    assert outcomes(tmp_path)['position'] is CheckStatus.HOLDS


def test_an_edge_without_limits_beside_one_with_is_not_passed_over(tmp_path):
    drive(1).write(tmp_path / '1')
    other = drive(2, client='robot_2')
    del other.parameters['limits']
    other.write(tmp_path / '2')
    result = result_of(run_audit([tmp_path]), 'position')
    assert (result.outcome, result.judged_runs, result.runs) == (
        CheckStatus.HOLDS_AS_RECORDED,
        1,
        2,
    )


def test_when_the_oldest_parts_are_gone_it_holds_for_what_was_recorded(tmp_path):
    drive(3, episodes=20).write(tmp_path, limit_bytes=4096, keep_files=3)
    found = outcomes(tmp_path)
    assert set(found.values()) == {CheckStatus.HOLDS_AS_RECORDED, CheckStatus.NOT_JUDGED}
    assert found['drops'] is CheckStatus.NOT_JUDGED
    assert found['rows'] is CheckStatus.HOLDS_AS_RECORDED


def test_the_bound_may_be_changed_while_the_node_runs(tmp_path):
    clean = drive(1)
    age_s = max(record.get('age_s', 0) for record in clean.edge)
    change = {'kind': 'parameter', 'mono_ns': 0, 'name': 'max_action_age_s', 'new': age_s / 2}
    clean.write(tmp_path / 'before')
    clean.edge.insert(0, change)
    clean.write(tmp_path / 'after')
    assert outcomes(tmp_path / 'before')['age'] is CheckStatus.HOLDS
    assert outcomes(tmp_path / 'after')['age'] is CheckStatus.VIOLATED


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(TraceError, match='name files'):
        run_audit([tmp_path])
    with pytest.raises(TraceError, match='name files'):
        run_audit([tmp_path / 'missing.jsonl'])
    (tmp_path / 'notes.jsonl').write_text('no trace\n')
    with pytest.raises(TraceError, match='not a trace'):
        run_audit([tmp_path])


def test_with_interpolation_not_everything_of_rows_is_judged(tmp_path):
    clean = drive(1)
    clean.parameters['interpolation_multiplier'] = 2
    clean.write(tmp_path)
    result = result_of(run_audit([tmp_path]), 'rows')
    assert result.outcome is CheckStatus.HOLDS_AS_RECORDED
    assert 'interpolation' in result.why_not
