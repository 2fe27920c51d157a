# SPDX-License-Identifier: Apache-2.0
"""The records: their fields, and that the documentation names them all."""

from __future__ import annotations

from typing import Any

from msgspec import structs
import numpy as np
import pytest
from support.paths import REPOSITORY
from support.tools.trace_rig import header, IDS, strict

from lerobot_serve.contract.schema import Status
from lerobot_serve.tools.traces.fields import read_record, record_of
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.records import enum_name, KINDS, RecordIds, TraceRecord

DOCUMENT = REPOSITORY / 'docs' / 'trace.md'
WRITTEN = sorted(set(KINDS) - {'damaged'})
# what joins records, which a reader finds in all kinds, and the kinds that are of an episode
JOINING = ('client_id', 'session_id', 'session_epoch', 'seq', 'episode_id')
OF_EPISODE = (
    *('drop', 'executed', 'incident', 'outcome', 'placement'),
    *('reported_outcome', 'request', 'shadow', 'state'),
)


def written(record: TraceRecord) -> dict[str, Any]:
    return strict(encode(record))


def names(kind: str) -> list[str]:
    """Return the fields that are written, the joining ones only by that of the episode."""
    found = {each.encode_name for each in structs.fields(KINDS[kind])} - {*JOINING, 'later'}
    return sorted({*found, 'episode_id'} if kind in OF_EPISODE else found)


def test_a_header_says_who_writes():
    assert written(header()) == {
        'kind': 'header',
        'mono_ns': 5_000,
        'schema_version': 2,
        'node': '/edge_controller',
        'role': 'edge',
        'version': '0.1.0',
        'wall_time': '2025-06-15T15:06:40.250Z',
        'policies': [
            {'slot': 'a', 'policy_id': 'reach', 'policy_hash': 'f0ed'},
            {'slot': 'b', 'policy_id': 'reach', 'policy_hash': '0b57'},
        ],
        'parameters': {'fps': 30.0, 'servers': ['/policy_router']},
    }


def test_a_role_that_is_none_is_refused():
    with pytest.raises(ValueError, match="edge, router, server, got 'robot'"):
        header(role='robot')


def test_a_header_says_nothing_of_policies_that_are_not_known_yet():
    assert 'policies' not in written(header(policies=None))
    # a node that knows of none says so
    assert written(header(policies=[]))['policies'] == []


def test_a_record_of_a_session_has_the_name_of_the_session():
    assert written(TraceRecord(1, *IDS.fields()))['session_id'] == 'robot_1#0000004d'
    for ids in (RecordIds('robot_1'), RecordIds(session_epoch=7), RecordIds()):
        assert 'session_id' not in written(TraceRecord(1, *ids.fields()))


def test_a_fingerprint_is_taken_apart_at_its_last_at():
    assert records.policy('a', 'me@home/reach@f0') == {
        'slot': 'a',
        'policy_id': 'me@home/reach',
        'policy_hash': 'f0',
    }


def test_a_request_holds_what_is_known_of_it():
    made = records.RequestRecord(
        9,
        *IDS.fields(),
        status=enum_name(Status.TOO_LATE),
        episode=0,
        routing=records.routing('a', routing_key='episode-1', sticky=True),
        policy='reach@f0ed',
        seed=2**64 - 1,
        queue_wait_ms=0.0,
        dropped=None,
        reason='',
    )
    assert written(made) == {
        'kind': 'request',
        'mono_ns': 9,
        'client_id': 'robot_1',
        'session_id': 'robot_1#0000004d',
        'session_epoch': 77,
        'seq': 12,
        'episode_id': 'episode-1',
        'status': 'too_late',
        'episode': 0,
        'routing': {
            'slot': 'a',
            'routing_key': 'episode-1',
            'missing_episode_id': False,
            'sticky': True,
        },
        'policy': 'reach@f0ed',
        'seed': 2**64 - 1,
        'queue_wait_ms': 0.0,
    }


def test_what_is_executed_is_the_callers_to_change_afterwards():
    wanted = np.array([0.1, 0.2], np.float32)
    made = records.ExecutedRecord(
        1,
        *IDS.command_fields(),
        control_step=5,
        cage_result='clamped',
        rung='policy',
        raw_actions=records.copied(wanted),
        commanded=records.copied(wanted / 2),
    )
    wanted[:] = 7
    read = written(made)
    assert (read['raw'], read['commanded']) == ([0.1, 0.2], [0.05, 0.1])
    assert 'chunk_row' not in read


def test_what_was_stopped_has_no_command():
    made = records.ExecutedRecord(
        1,
        *RecordIds('r').command_fields(),
        control_step=5,
        cage_result='stopped',
        rung='hold',
        raw_actions=[1],
        commanded=None,
    )
    assert written(made) == {
        'kind': 'executed',
        'mono_ns': 1,
        'client_id': 'r',
        'control_step': 5,
        'cage_result': 'stopped',
        'rung': 'hold',
        'raw': [1],
    }


def test_the_smaller_records():
    change = records.StateRecord(
        1, 'r', component='connection', before='streaming', after='stalled', reason='late'
    )
    assert written(change) == {
        'kind': 'state',
        'mono_ns': 1,
        'client_id': 'r',
        'component': 'connection',
        'from': 'streaming',
        'to': 'stalled',
        'reason': 'late',
    }
    assert written(records.ParameterRecord(1, name='split_percent', old=None, new='')) == {
        'kind': 'parameter',
        'mono_ns': 1,
        'name': 'split_percent',
        'old': None,
        'new': '',
    }
    shared = written(records.CanaryRecord(1, event='x', reason='latency', share_percent=0.0))
    assert shared['share_percent'] == 0
    assert written(records.IncidentRecord(1, name='cage_latched')) == {
        'kind': 'incident',
        'mono_ns': 1,
        'name': 'cage_latched',
    }


def test_a_decision_and_a_comparison():
    decision = records.PlacementRecord(
        1, *IDS.fields(), slot='b', bucket=97, split_percent=95, moved=False, sticky=False
    )
    decided = written(decision)
    assert decided['moved'] is False
    assert decided['sticky'] is False
    # no shared state
    assert 'split_version' not in decided
    decision.split_version = 12
    assert written(decision)['split_version'] == 12
    compared = records.ShadowRecord(
        1,
        *IDS.fields(),
        live_policy='reach@f0ed',
        shadow_policy='reach@0b57',
        rows=2,
        divergence=0.5,
        divergence_per_action={'joint_1.pos': float('nan')},
    )
    assert written(compared)['not_finite'] == ['divergence_per_action.joint_1.pos']


@pytest.mark.parametrize('kind', sorted(KINDS))
def test_what_is_missing_or_of_another_type_reads_as_absent(kind):
    absent = record_of({'kind': kind})
    assert type(absent) is KINDS[kind]
    spoilt = record_of({'kind': kind, 'mono_ns': 1.5, 'client_id': 7, 'reason': [], 'images': 5})
    assert (spoilt.mono_ns, spoilt.client_id) == (None, '')
    assert (getattr(spoilt, 'reason', ''), getattr(spoilt, 'images', None) or None) == ('', None)
    for name in absent.__struct_fields__:
        assert getattr(absent, name) in (None, '', False, {}), name


def test_a_record_that_is_read_is_what_was_written():
    command = records.ExecutedRecord(
        7,
        *IDS.command_fields(),
        control_step=5,
        age_s=0.1,
        cage_result='pass',
        rung='policy',
        raw_actions=[0.5],
        commanded=[],
    )
    assert read_record(encode(command)) == command
    assert type(read_record(b'{"kind":"of_later_days"}')) is records.OtherRecord
    with pytest.raises(ValueError):
        read_record(b'{"seq":1}')


@pytest.mark.golden
def test_the_fields_of_each_kind_are_what_was_agreed(golden):
    lines = sorted(f'{kind} {name}' for kind in WRITTEN for name in names(kind))
    golden.holds('trace_records.txt', '\n'.join(lines) + '\n')


@pytest.mark.parametrize('kind', WRITTEN)
def test_the_documentation_has_every_field(kind):
    document = DOCUMENT.read_text()
    assert f'`{kind}`' in document
    for name in (*JOINING, *names(kind)):
        assert f'`{name}`' in document, name


def test_the_documentation_has_every_reason_of_a_loss():
    source = (REPOSITORY / 'lerobot_serve/trace/writing/writer.py').read_text()
    document = DOCUMENT.read_text()
    reasons = {word for word in source.split("'") if word.startswith('trace_')}
    assert reasons == {'trace_overflow', 'trace_failed', 'trace_unwritable', 'trace_closed'}
    assert not {reason for reason in reasons if f'`{reason}`' not in document}
