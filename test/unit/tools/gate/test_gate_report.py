# SPDX-License-Identifier: Apache-2.0
"""The record of a gate: what a router reads before a candidate drives, and what is printed."""

from __future__ import annotations

import pytest

from lerobot_serve.router.canary.gate_record import read_record, TEXT_LIMIT, write_record
from lerobot_serve.tools.gate.figures import GateFigures
from lerobot_serve.tools.gate.limits import GateLimits
from lerobot_serve.tools.gate.report import gate_report, make_record, WORDS
from lerobot_serve.tools.gate.rules import Gate

S, P = 'safety', 'performance'
GATES = (
    Gate('cage', S, 'passed', 0.5, 2.0, 'few'),
    Gate('success', P, 'failed', 0.2, 0.1, 'worse by 20 points'),
    Gate('latency', P, 'unmeasured', None, 1.5, 'the parent was not run'),
)


def figures(episodes: int = 40) -> GateFigures:
    return GateFigures('new@11', 'old@22', episodes=episodes, requests=400, digest='d' * 64)


def record_of(verdict: str, gates=GATES, found=None, **overrides: str):
    return make_record(
        found or figures(),
        gates,
        verdict,
        GateLimits(),
        overrides=overrides,
        by='kim@lab',
        made='2026-01-01',
    )


@pytest.mark.parametrize('verdict', WORDS)
def test_a_router_reads_what_was_written(verdict, tmp_path):
    made = record_of(verdict)
    found = read_record(write_record(tmp_path, made))
    assert found == made
    assert (found.verdict, found.candidate, found.parent) == (verdict, 'new@11', 'old@22')
    # JSON has no NaN
    assert [row['value'] for row in found.gates] == [0.5, 0.2, None]
    report = gate_report(found, figures(), GATES)
    assert report.as_text().splitlines()[-1].startswith(WORDS[verdict])
    assert report.status == {'passed': 0, 'overridden': 0, 'too_few': 4}.get(verdict, 3)


UNMEASURED = Gate('cage', S, 'unmeasured', None, 2.0, 'no limits')
# only an override that was needed is recorded
NEEDED, MORE = {'success': 'a new gripper'}, {'latency': 'slow is fine'}
RECORDS = {
    'held': record_of('held'),
    'passed': record_of('passed', GATES[:1]),
    'refused': record_of('refused', (UNMEASURED,)),
    'too few': record_of('too_few', found=figures(12)),
    'overridden': record_of('overridden', **NEEDED, **MORE),
}


@pytest.mark.golden
def test_what_is_said_of_a_record(golden):
    texts = [
        f'{name}: {record.text}\n{gate_report(record, figures(), GATES).as_text()}'
        for name, record in RECORDS.items()
    ]
    golden.holds('gate_records.txt', '\n\n'.join(texts) + '\n')
    assert RECORDS['overridden'].overrides == (('success', 'a new gripper', 'kim@lab'),)


def test_a_long_text_fits_a_record(tmp_path):
    gate = Gate('cage', S, 'failed', 9.0, 2.0, 'ä' * TEXT_LIMIT)
    made = record_of('refused', (gate,))
    assert len(made.text.encode()) <= TEXT_LIMIT
    assert read_record(write_record(tmp_path, made)) == made
