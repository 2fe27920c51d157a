# SPDX-License-Identifier: Apache-2.0
"""Every transition of every state: which is an incident, of which kind and severity."""

from __future__ import annotations

from itertools import product

import pytest
from support.tools.operator_states import (
    changed,
    EDGE_NAMES,
    robot_of,
    RUNG_NAMES,
    SERVER_NAMES,
    SLOT_NAMES,
)

from lerobot_serve.contract.records import EdgeState, ReplicaState
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.dashboard.document import incidents as rules

ROBOT = robot_of('/robot_7/edge', episode_id='e1', policy='v1', server='/router').edge
# new state -> kind and severity, whatever the old one was
ENTERED = {
    'STALLED': ('stall', 'error'),
    'RECONNECTING': ('server', 'warning'),
    'CONNECTING': ('server', 'warning'),
    'DEAD': ('stall', 'error'),
}
# a recovery has the kind of what it ends
ENDED = {state: (kind, 'info') for state, (kind, _) in ENTERED.items()}
LADDER = {
    'RAMP': 'warning',
    'HOLD': 'warning',
    'REPEAT_LAST': 'warning',
    'ZERO': 'warning',
    'SAFE_POSE': 'warning',
    'INITIAL_POSE': 'warning',
    'PERSON': 'info',
    'STOP_SERVICE': 'error',
    'NO_COMMAND': 'error',
}


def found(old: EdgeState, new: EdgeState) -> list[tuple[str, str]]:
    return [(each.kind, each.severity) for each in rules.robot_findings(old, new)]


@pytest.mark.parametrize(('old', 'new'), product(EDGE_NAMES, EDGE_NAMES))
def test_every_transition_of_state_and_rung(old, new):
    for old_rung, new_rung in product(RUNG_NAMES, RUNG_NAMES):
        expected = []
        if new != old and new in ENTERED:
            expected.append(ENTERED[new])
        elif new != old and new == 'STREAMING' and old in ENDED:
            expected.append(ENDED[old])
        if new_rung not in (old_rung, 'POLICY'):
            expected.append(('ladder', LADDER[new_rung]))
        before = changed(ROBOT, state=old, rung=old_rung)
        after = changed(ROBOT, state=new, rung=new_rung)
        assert found(before, after) == expected, (old_rung, new_rung)


@pytest.mark.parametrize('rung', RUNG_NAMES)
@pytest.mark.parametrize(('paused', 'episode_id'), [(True, 'e1'), (False, ''), (True, '')])
def test_a_rung_of_a_pause_or_after_an_episode_is_expected_except_the_stop(
    rung, paused, episode_id
):
    new = changed(ROBOT, rung=rung, paused=paused, episode_id=episode_id)
    expected = [('ladder', 'error')] if rung == 'STOP_SERVICE' else []
    assert found(ROBOT, new) == expected


def test_a_stall_between_two_polls_is_seen_by_its_count():
    assert found(ROBOT, changed(ROBOT, stalls=1)) == [('stall', 'error')]
    # the state says it, too: one incident
    stalled = changed(ROBOT, state='STALLED', stalls=1)
    assert found(ROBOT, stalled) == [('stall', 'error')]
    # it has lost its session since: both are told
    lost = changed(ROBOT, state='RECONNECTING', stalls=1)
    assert found(ROBOT, lost) == [('stall', 'error'), ('server', 'warning')]
    assert found(stalled, lost) == [('server', 'warning')]
    # an edge that was restarted counts from 0
    assert found(changed(ROBOT, stalls=5, cage_trips=5), ROBOT) == []


def test_trips_of_the_cage_are_counted():
    (finding,) = rules.robot_findings(ROBOT, changed(ROBOT, cage_trips=1))
    assert (finding.kind, finding.text) == ('cage', 'the safety cage changed 1 command')
    (finding,) = rules.robot_findings(ROBOT, changed(ROBOT, cage_trips=12))
    assert '12 commands' in finding.text


@pytest.mark.parametrize(
    ('changes', 'is_incident'),
    [
        ({'policy': 'v2'}, True),
        ({'policy': 'v2', 'episode_id': 'e2'}, False),
        ({'policy': ''}, False),
        ({'policy': 'v2', 'episode_id': ''}, False),
        ({}, False),
    ],
)
def test_a_policy_must_not_change_within_an_episode(changes, is_incident):
    expected = [('policy_changed', 'warning')] if is_incident else []
    assert found(ROBOT, changed(ROBOT, **changes)) == expected
    # its first chunk is still of the episode before
    assert not rules.robot_findings(ROBOT, changed(ROBOT, **changes), is_settled=False)


SEVERITIES = {
    'HEALTHY': 'info',
    'DRAINED': 'info',
    'PROBING': 'warning',
    'UNAVAILABLE': 'error',
    'BARRED': 'error',
    'UNQUALIFIED': 'warning',
}


@pytest.mark.parametrize(('old', 'new'), product(SLOT_NAMES, SLOT_NAMES))
def test_every_transition_of_a_slot(old, new):
    finding = rules.state_finding('slot', 'slot b', old, new, 'why')
    if old == new:
        assert finding is None
        return
    assert finding == ('slot', SEVERITIES[new], f'slot b: {old} -> {new} (why)')


@pytest.mark.parametrize(('old', 'new'), product(ReplicaState.State.__members__, repeat=2))
def test_every_transition_of_a_replica(old, new):
    severity = {'UNKNOWN': 'info', 'READY': 'info', 'UNHEALTHY': 'warning'}.get(new, 'error')
    finding = rules.state_finding('server', 'replica /v1', old, new, '')
    assert finding == (
        None if old == new else ('server', severity, f'replica /v1: {old} -> {new}')
    )


@pytest.mark.parametrize(('old', 'new'), product(SERVER_NAMES, SERVER_NAMES))
def test_every_transition_of_a_server(old, new):
    severity = {'ACTIVE': 'info', 'FAILED': 'error'}.get(new, 'warning')
    finding = rules.state_finding('server', 'server', old, new, '')
    assert finding == (None if old == new else ('server', severity, f'server: {old} -> {new}'))


@pytest.mark.parametrize(('old', 'new'), product(CanaryPhase, CanaryPhase))
def test_every_transition_of_a_rollout(old, new):
    finding = rules.rollout_finding(old, new, '')
    moves_by_itself = {old, new} == {CanaryPhase.RUNNING, CanaryPhase.UNDECIDED}
    if old is new or moves_by_itself:
        assert finding is None
    elif new is CanaryPhase.ROLLED_BACK:
        assert finding and finding[:2] == ('rollback', 'error')
    else:
        assert finding and finding[:2] == ('rollout', 'info')


@pytest.mark.parametrize(
    ('is_silent', 'has_publisher', 'severity', 'text'),
    [
        (True, True, 'error', 'it hangs'),
        (True, False, 'error', 'process ended'),
        (False, True, 'info', 'heard of again'),
        (False, False, 'info', 'heard of again'),
    ],
)
def test_a_silence_says_what_it_may_be(is_silent, has_publisher, severity, text):
    finding = rules.silence_finding('the robot', is_silent=is_silent, has_publisher=has_publisher)
    assert finding[:2] == ('silent', severity) and text in finding.text
