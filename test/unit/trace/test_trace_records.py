# SPDX-License-Identifier: Apache-2.0
"""The records: their fields, and that the documentation names them all."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from support.paths import REPOSITORY
from support.tools.trace_rig import header, IDS, POLICIES, strict

from lerobot_serve.contract.schema import Status
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.records import RecordIds

DOCUMENT = REPOSITORY / 'docs' / 'trace.md'
# how a record is made -> its kind
KINDS = (
    records.header,
    records.clock,
    records.policies,
    records.request,
    records.executed,
    records.state,
    records.outcome,
    records.parameter,
    records.placement,
    records.shadow,
    records.canary,
    records.drop,
    records.incident,
    records.footer,
)
# arguments that are fields of another name, or of every kind
ELSEWHERE = {
    'ids': 'episode_id',
    'now_ns': 'mono_ns',
    'wall_s': 'wall_time',
    'before': 'from',
    'after': 'to',
    'present': 'policies',
}


def test_a_header_says_who_writes():
    assert header() == {
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
        'parameters': {'fps': 30.0, 'servers': ('/policy_router',)},
    }


def test_a_role_that_is_none_is_refused():
    with pytest.raises(ValueError, match="edge, router, server, got 'robot'"):
        header(role='robot')


def test_a_header_says_nothing_of_policies_that_are_not_known_yet():
    assert 'policies' not in header(policies=None)
    # a node that knows of none says so
    assert header(policies=[])['policies'] == []


def test_a_record_of_a_session_has_the_name_of_the_session():
    assert records.drop(1, 'late_chunk', ids=IDS)['session_id'] == 'robot_1#0000004d'
    for ids in (RecordIds('robot_1'), RecordIds(session_epoch=7), records.NO_IDS):
        assert 'session_id' not in records.drop(1, 'late_chunk', ids=ids)


def test_a_fingerprint_is_taken_apart_at_its_last_at():
    assert records.policy('a', 'me@home/reach@f0') == {
        'slot': 'a',
        'policy_id': 'me@home/reach',
        'policy_hash': 'f0',
    }


def test_a_request_holds_what_is_known_of_it():
    made = records.request(
        9,
        IDS,
        status=Status.TOO_LATE,
        episode=0,
        routing=records.routing('a', routing_key='episode-1', sticky=True),
        policy='reach@f0ed',
        seed=2**64 - 1,
        queue_wait_ms=0.0,
        dropped={},
        reason='',
    )
    assert made == {
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
    made = records.executed(
        1,
        IDS,
        control_step=5,
        cage_result='clamped',
        rung='policy',
        raw=wanted,
        commanded=wanted / 2,
    )
    wanted[:] = 7
    read = strict(encode(made))
    assert (read['raw'], read['commanded']) == ([0.1, 0.2], [0.05, 0.1])
    assert 'chunk_row' not in read


def test_what_was_stopped_has_no_command():
    made = records.executed(
        1,
        RecordIds('r'),
        control_step=5,
        cage_result='stopped',
        rung='hold',
        raw=[1],
        commanded=None,
    )
    assert 'commanded' not in made
    assert strict(encode(made)) == {
        'kind': 'executed',
        'mono_ns': 1,
        'client_id': 'r',
        'control_step': 5,
        'cage_result': 'stopped',
        'rung': 'hold',
        'raw': [1],
    }


def test_the_smaller_records():
    assert records.state(
        1, 'connection', 'streaming', 'stalled', reason='late', ids=RecordIds('r')
    ) == {
        'kind': 'state',
        'mono_ns': 1,
        'client_id': 'r',
        'component': 'connection',
        'from': 'streaming',
        'to': 'stalled',
        'reason': 'late',
    }
    assert records.parameter(1, 'split_percent', None, 5) == {
        'kind': 'parameter',
        'mono_ns': 1,
        'name': 'split_percent',
        'old': None,
        'new': 5,
    }
    assert records.drop(1, 'late_chunk', ids=IDS)['count'] == 1
    assert records.policies(1, POLICIES)['policies'] == POLICIES
    assert (
        records.canary(1, 'rolled_back', reason='latency', share_percent=0.0)['share_percent'] == 0
    )
    assert records.incident(1, 'cage_latched') == {
        'kind': 'incident',
        'mono_ns': 1,
        'name': 'cage_latched',
    }


def test_a_decision_and_a_comparison():
    decided = records.placement(
        1, IDS, slot='b', bucket=97, split_percent=95, moved=False, sticky=False
    )
    assert decided['moved'] is False
    assert decided['sticky'] is False
    # no shared state
    assert 'split_version' not in decided
    shared = records.placement(
        1, IDS, slot='b', bucket=97, split_percent=95, moved=False, split_version=12
    )
    assert strict(encode(shared))['split_version'] == 12
    compared = records.shadow(
        1,
        IDS,
        live_policy='reach@f0ed',
        shadow_policy='reach@0b57',
        rows=2,
        divergence=0.5,
        divergence_per_action={'joint_1.pos': float('nan')},
    )
    assert strict(encode(compared))['not_finite'] == ['divergence_per_action.joint_1.pos']


@pytest.mark.golden
def test_the_fields_of_each_kind_are_what_was_agreed(golden):
    lines = sorted(
        f'{make.__name__} {ELSEWHERE.get(name, name)}'
        for make in KINDS
        for name in inspect.signature(make).parameters
    )
    golden.holds('trace_records.txt', '\n'.join(lines) + '\n')


@pytest.mark.parametrize('make', KINDS, ids=lambda make: make.__name__)
def test_the_documentation_has_every_field(make):
    document = DOCUMENT.read_text()
    assert f'`{make.__name__}`' in document
    for name in inspect.signature(make).parameters:
        assert f'`{ELSEWHERE.get(name, name)}`' in document, name


def test_the_documentation_has_every_reason_of_a_loss():
    source = (REPOSITORY / 'lerobot_serve/trace/writing/writer.py').read_text()
    document = DOCUMENT.read_text()
    reasons = {word for word in source.split("'") if word.startswith('trace_')}
    assert reasons == {'trace_overflow', 'trace_failed', 'trace_unwritable', 'trace_closed'}
    assert not {reason for reason in reasons if f'`{reason}`' not in document}
