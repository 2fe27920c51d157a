# SPDX-License-Identifier: Apache-2.0
"""A fleet that no node runs: rows of the dashboard's document with every state in them."""

from __future__ import annotations

from typing import Any

from lerobot_serve.contract.records import DropCount
from lerobot_serve.tools.dashboard.document import rows
from support.tools.operator_states import learner_of, replica_of, robot_of, server_of, slot_of

Row = dict[str, Any]
V1, V2 = 'reach_v1@41ab77c0d2e9', 'reach_v2@5f1c09aa31bc'
HOSTILE = ('<script>alert(1)</script>', '"><img src=x onerror=alert(2)>', "'onload='alert(3)")
TEXTS = {
    'DEAD': 'the cage latched: elbow_flex at 2.1 rad/s, limit 1.5 rad/s',
    'STALLED': 'no chunk for 4.1 s: /v2/policy_server does not reply',
    'RECONNECTING': 'the session is being reopened',
    'CONNECTING': 'waiting for /policy_router',
    'DEGRADED': 'replies late: 3 of the last 10',
    'STREAMING': '',
}
RUNGS = {'DEAD': 'NO_COMMAND', 'STALLED': 'HOLD', 'RECONNECTING': 'HOLD', 'DEGRADED': 'POLICY'}


def node_of(name: str) -> str:
    return f'/{name}/edge_controller'


def robot(name: str, state: str = 'STREAMING', **more: Any) -> Row:
    """Return the row of a robot in a state."""
    found = robot_of(
        *(node_of(name), name, state, RUNGS.get(state, 'POLICY')),
        reason=TEXTS[state],
        server='/policy_router',
        slot='a',
        policy=V1,
        episode_id=f'{name}-1',
        task='put the cube in the bin',
        queue_remaining_s=1.2,
        action_age_s=0.2,
        round_trip_ms=31.0,
        network_ms=3.0,
    )
    # one with a slash is not that of its node
    return rows.robot_row(found, 1.0) | {'name': name} | more


def slot(policy: str, share_percent: int, **more: Any) -> Row:
    found = slot_of(
        policy=policy,
        share_percent=share_percent,
        episodes=412,
        requests=18211,
        requests_failed=3,
        episodes_succeeded=371,
        episodes_failed=22,
        replicas=(replica_of('/v/policy_server', 'READY', policy=policy, latency_ms_p95=34.0),),
    )
    return rows.row_of(found) | more


def guard(name: str, text: str, headroom: float | None) -> Row:
    return {'name': name, 'text': text, 'headroom': headroom}


def rollout(phase: str = 'RUNNING', **more: Any) -> Row:
    row: Row = {
        'state': phase,
        'candidate_policy': V2,
        'champion_policy': V1,
        'step': 0,
        'step_count': 3,
        'share_percent': 25,
        'plan': '25:2:600, 50:4:600, 100',
        'text': '37 of 30 episodes',
        'episodes_left': 12,
        'hours_left': 0.4,
        'candidate_successes': 28,
        'candidate_failures': 9,
        'champion_successes': 371,
        'champion_failures': 22,
        'bars': [
            {'decision': 'promote', 'evidence': 0.42, 'needed': 1.3, 'ratio': 0.32},
            {'decision': 'roll back', 'evidence': 0.91, 'needed': 1.78, 'ratio': 0.51},
        ],
        'guards': [
            guard('failed requests', '0.49%, limit 2%, 76 % left', 0.755),
            guard('latency p95', '41.7 ms, limit 51.3 ms, 19 % left', 0.187),
            guard('robots that halted', 'limit 5%; no data yet, 0 of 2 halts', None),
            guard('from the fallback ladder', '2.6%, limit 2%, above the limit', -0.3),
            guard('divergence in shadow', 'off', None),
        ],
    }
    return row | more


def router(phase: str = 'RUNNING', **more: Any) -> Row:
    """Return the row of a router with a rollout in a phase."""
    refused = {'effect': 'refuse', 'text': 'a step is not undone', 'asks': False}
    done = {'effect': 'do', 'text': 'change it', 'asks': True}
    verbs, others = ('pause', 'promote', 'abort', 'stop'), ('start', 'resume', 'undo', 'finish')
    row: Row = {
        'health': 'healthy',
        'text': '',
        'split_percent': 75,
        'sessions': 24,
        'slots': {'a': slot(V1, 75), 'b': slot(V2, 25, episodes_succeeded=28, episodes_failed=9)},
        'rollout': rollout(phase),
        'decisions': [
            {'at': '18:02:11', 'text': 'rollout running, 25 % to slot b'},
            {'at': '17:31:02', 'text': 'split_percent: 90 -> 75'},
        ],
        'actions': dict.fromkeys(verbs, done) | dict.fromkeys(others, refused),
    }
    return row | more


def server(name: str, **more: Any) -> Row:
    found = server_of(
        *(name, 'ACTIVE'),
        policy=V1,
        slot='a',
        device='cuda:0',
        load=0.61,
        memory_mb=1840.0,
        inference_ms_p50=21.2,
        inference_ms_p99=29.8,
        queue_wait_ms_p99=4.2,
        active_sessions=8,
        max_sessions=16,
        requests=18211,
        chunks=18190,
        superseded=12,
        dropped=(DropCount('too_late', 2),),
    )
    return rows.server_row(found) | more


def learner(phase: str = 'TRAINING', **more: Any) -> Row:
    """Return the row of a learner in its third round."""
    found = learner_of(
        *('/learner', phase),
        text='round 3: trains',
        round=3,
        parent=V1,
        latest=V2,
        episodes=120,
        episodes_new=17,
        episodes_wanted=50,
        progress=0.42,
        loss=0.0312,
        remaining_s=750.0,
        dropped=(DropCount('other_host', 12),),
    )
    return rows.learner_row(found) | more


def incident(number: int, kind: str, severity: str, who: str, text: str) -> Row:
    return {
        'at': f'18:0{number}:11',
        'at_ms': number * 60_000,
        'kind': kind,
        'severity': severity,
        'who': who,
        'text': text,
    }


def incidents() -> dict[str, Row]:
    return {
        '1': incident(1, 'rollback', 'info', '/policy_router', f'{V2} rolled back'),
        '2': incident(2, 'slot', 'warning', '/policy_router', 'slot b: 3 requests failed'),
        '3': incident(3, 'stall', 'error', 'robot_3', TEXTS['STALLED']),
    }


def episodes() -> dict[str, Row]:
    ended = {'task': 'put the cube in the bin', 'began': '18:01:02', 'ended': '18:01:32'}
    return {
        'ep-1': {'robot': 'robot_1', **ended},
        'ep-2': {'robot': 'robot_2', **ended, 'ended': '18:02:32'},
        'ep-3': {'robot': 'robot_3', **ended, 'outcome': 'success'},
        'ep-4': {'robot': 'robot_4', 'task': 'put the cube in the bin', 'began': '18:04:02'},
    }


def robots(count: int = 6) -> dict[str, Row]:
    """Return as many robots; the first ones have each a state of its own."""
    states = [*sorted(TEXTS), *['STREAMING'] * max(0, count - len(TEXTS))][:count]
    shown = [
        robot(f'robot_{index}', state, slot='ab'[index % 2], policy=(V1, V2)[index % 2])
        for index, state in enumerate(states, 1)
    ]
    return {node_of(row['name']): row for row in shown}


def fleet(robot_count: int = 6) -> dict[str, dict[str, Row]]:
    """Return all sections of the document."""
    return {
        'robots': robots(robot_count),
        'routers': {'/policy_router': router()},
        'servers': {
            '/v1/policy_server': server('v1'),
            '/v2/policy_server': server('v2', slot='b', policy=V2, load=0.93),
        },
        'learners': {'/learner': learner()},
        'incidents': incidents(),
        'episodes': episodes(),
    }
