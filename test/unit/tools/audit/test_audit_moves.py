# SPDX-License-Identifier: Apache-2.0
"""An episode that is moved: what was asked for before may be played after; copies are no move."""

from __future__ import annotations

from msgspec import structs
import pytest
from support.tools.audit_rig import accusations, executed, POLICY, result_of, write

from lerobot_serve.tools.audit.checks.sticky_slots import StickySlotCheck, UNCOVERED
from lerobot_serve.tools.audit.engine import CheckStatus, run_audit
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import RecordIds, TraceRecord

MS = 1_000_000


def ids(seq: int) -> RecordIds:
    return RecordIds('robot_1', 3, seq, 'episode-1')


def decided(at_ms: int, seq: int, slot: str, *, moved: bool) -> TraceRecord:
    return records.PlacementRecord(
        at_ms * MS, *ids(seq).fields(), slot=slot, bucket=7, split_percent=50, moved=moved
    )


def asked(at_ms: int, seq: int, slot: str) -> TraceRecord:
    return records.RequestRecord(
        at_ms * MS,
        *ids(seq).fields(),
        status='ok',
        episode=1,
        routing=records.routing(slot),
        policy=POLICY[slot],
        round_trip_ms=1.0,
    )


def played(at_ms: int, seq: int, row: int, slot: str) -> TraceRecord:
    more = {'control_step': at_ms, 'chunk_row': row, 'age_s': 0.1, 'slot': slot}
    return executed(at_ms * MS, ids(seq), policy=POLICY[slot], **more)


ROUTER = [
    decided(10, 1, 'a', moved=False),
    asked(12, 1, 'a'),
    decided(30, 2, 'b', moved=True),
    asked(32, 2, 'b'),
]


def sticky(folder):
    found = run_audit([folder])
    return found, result_of(found, 'sticky')


def test_a_row_that_was_asked_for_before_the_move_may_be_played_after_it(tmp_path):
    edge = [
        asked(13, 1, 'a'),
        played(14, 1, 0, 'a'),
        asked(33, 2, 'b'),
        played(34, 1, 1, 'a'),
        played(36, 2, 0, 'b'),
    ]
    write(tmp_path, 'edge', 'edge', edge, {}, 0)
    write(tmp_path, 'router', 'router', ROUTER, {}, 0)
    found, result = sticky(tmp_path)
    assert result.outcome is CheckStatus.HOLDS
    assert not [each for each in accusations(found) if each[0] == 'sticky']


@pytest.mark.parametrize('seq', [2, 3])
def test_a_row_that_was_asked_for_after_the_move_is_of_the_new_slot(tmp_path, seq):
    router, edge = TraceRun(tmp_path / 'router.jsonl', 0), TraceRun(tmp_path / 'edge.jsonl', 1)
    router.role, edge.role = 'router', 'edge'
    seen = StickySlotCheck(show=5)
    for run, record in (
        (router, ROUTER[0]),
        (edge, asked(13, 1, 'a')),
        (router, ROUTER[2]),
        (edge, asked(33, 2, 'b')),
        (edge, played(34, 1, 1, 'a')),
        (edge, played(36, seq, 0, 'a')),
    ):
        seen.observe(run, record)
    seen.finish([router, edge])
    assert [tally.violations for tally in seen.tallies] == [0, 1]


def test_what_a_server_answers_for_a_trial_or_in_shadow_is_no_move(tmp_path):
    write(tmp_path, 'edge', 'edge', [asked(13, 1, 'a'), played(14, 1, 0, 'a')], {}, 0)
    write(tmp_path, 'router', 'router', ROUTER[:2], {}, 0)
    write(tmp_path, 'server_b', 'server', [asked(13, 1, 'b')], {}, 0)
    _, result = sticky(tmp_path)
    assert result.outcome is CheckStatus.HOLDS
    assert result.judged == 2


def test_an_episode_that_no_router_trace_has_is_not_accused(tmp_path):
    """The router was started again, and the trace of before is away."""
    edge = [asked(13, 1, 'a'), played(14, 1, 0, 'a'), asked(33, 2, 'b'), played(36, 2, 0, 'b')]
    other = [structs.replace(record, episode_id='episode-2') for record in ROUTER[:2]]
    write(tmp_path, 'edge', 'edge', edge, {}, 0)
    write(tmp_path, 'router', 'router', other, {}, 0)
    found, result = sticky(tmp_path)
    assert result.outcome is CheckStatus.HOLDS_AS_RECORDED
    assert result.why_not == UNCOVERED
    assert not [each for each in accusations(found) if each[0] == 'sticky']
