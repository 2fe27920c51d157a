# SPDX-License-Identifier: Apache-2.0
"""A drained slot or replica is tried by copies, whose answers reach no robot, and comes back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.router.dispatch_rig import episode_in, MS, Rig, SECOND, SLOTS, TIMEOUT_NS

from lerobot_serve.contract.schema import Status

FIRST_PROBE_NS, SUCCESSES = 2 * SECOND, 3
RULES = {
    'replica_unhealthy_threshold': 5,
    'probe_initial_interval_s': 2.0,
    'probe_max_interval_s': 16.0,
}
IN_A, IN_B = episode_in('a'), episode_in('b')
SINGLE = {'a': ('/a1',), 'b': ('/b1',)}


@pytest.fixture
def rig():
    """Slot b is drained; a robot asks in slot a."""
    made = Rig(SINGLE, **RULES, robot='robot')
    made.slots['b'].health.mark_unhealthy(
        '5 consecutive failures, the last: not_finite', made.now_ns
    )
    return made


def asked_in_b(rig: Rig, ns: int = 10 * MS) -> tuple[bytes, list[str]]:
    """One round trip in slot a; return the request and who else got it."""
    rig.forget()
    raw = rig.request(episode=IN_A)
    servers = rig.servers
    assert servers[0] == '/a1'
    rig.advance(ns)
    rig.answer('/a1', raw)
    assert len(rig.replies) == 1
    return raw, servers[1:]


def test_nothing_is_tried_before_its_time(rig):
    rig.advance(FIRST_PROBE_NS - 1)
    assert asked_in_b(rig, 0)[1] == []
    rig.advance(1)
    assert asked_in_b(rig, 0)[1] == ['/b1']


def test_a_trial_reaches_no_robot_whatever_is_answered(rig):
    for status in (Status.OK, *Status, 99):
        rig.slots['b'].health.mark_unhealthy('again', rig.now_ns)
        rig.advance(FIRST_PROBE_NS)
        raw, servers = asked_in_b(rig)
        assert servers == ['/b1']
        rig.answer('/b1', raw, status)
        assert (rig.replies, rig.texts, rig.servers) == ([], [], [])
    assert rig.stats.slot('b').requests == 0


def test_clean_trials_one_after_the_other_bring_it_back(rig):
    rig.advance(FIRST_PROBE_NS)
    for _ in range(SUCCESSES):
        assert not rig.slots['b'].is_healthy
        raw, servers = asked_in_b(rig)
        assert servers == ['/b1']
        rig.answer('/b1', raw)
    assert rig.slots['b'].is_healthy
    assert asked_in_b(rig)[1] == []
    assert rig.round_trip(episode=IN_B) == '/b1'


def test_a_failing_trial_doubles_the_wait_up_to_a_bound(rig):
    began_ns, trials = rig.now_ns, []
    while rig.now_ns < began_ns + 60 * SECOND:
        raw, servers = asked_in_b(rig, 100 * MS)
        if servers:
            trials.append((rig.now_ns - began_ns) / SECOND)
            rig.answer('/b1', raw, Status.NOT_FINITE)
        rig.advance(400 * MS)
    gaps = [after - before for before, after in pairwise(trials)]
    waits = [4, 8, 16, 16]
    assert len(gaps) == len(waits)
    # robots ask twice a second
    assert all(wait <= gap <= wait + 1 for wait, gap in zip(waits, gaps, strict=True))
    assert rig.slots['b'].health.failures == 0


def test_a_trial_that_is_not_answered_is_a_failing_one_too(rig):
    rig.advance(FIRST_PROBE_NS)
    assert asked_in_b(rig)[1] == ['/b1']
    rig.advance(TIMEOUT_NS)
    rig.advance(4 * SECOND - 20 * MS)
    assert asked_in_b(rig)[1] == []
    rig.advance(20 * MS)
    assert asked_in_b(rig)[1] == ['/b1']
    assert rig.drop('timeout') == 0


def test_a_forgotten_session_is_opened_again_and_says_nothing_of_the_slot(rig):
    rig.advance(FIRST_PROBE_NS)
    raw, _ = asked_in_b(rig)
    rig.answer('/b1', raw, Status.NO_SESSION)
    ((robot, server),) = rig.outside.reopened
    assert (robot.request.client_id, server) == ('robot', '/b1')
    rig.advance(FIRST_PROBE_NS)
    assert asked_in_b(rig)[1] == ['/b1']


def test_a_robot_that_asks_there_anyway_is_its_trial(rig):
    rig.set_available('/a1', False)
    for _ in range(SUCCESSES):
        raw = rig.request(episode=IN_B)
        assert rig.servers == ['/b1']
        rig.answer('/b1', raw)
    assert len(rig.replies) == SUCCESSES
    assert rig.slots['b'].is_healthy


def test_one_trial_at_a_time_however_many_robots_ask(rig):
    for number in range(20):
        rig.robot(f'robot-{number}')
    rig.advance(FIRST_PROBE_NS)
    for number in range(20):
        rig.request(f'robot-{number}', IN_A)
    assert rig.servers.count('/b1') == 1


@pytest.mark.parametrize('suspect', [False, True])
def test_nothing_is_tried_that_is_away_or_a_stranger(rig, suspect):
    if suspect:
        rig.replicas['/b1'].health.mark_unhealthy('x', rig.now_ns)
    rig.advance(FIRST_PROBE_NS)
    rig.set_available('/b1', False)
    assert asked_in_b(rig)[1] == []
    rig.set_available('/b1', True)
    rig.replicas['/b1'].mismatch = 'another policy'
    assert asked_in_b(rig)[1] == []
    rig.replicas['/b1'].mismatch = ''
    rig.drain('b')
    # whom an operator drained is probed: the answer reaches no robot
    assert asked_in_b(rig)[1] == ['/b1']


def test_the_last_one_there_is_gets_the_request_itself_and_no_copy():
    rig = Rig({'prod': ('/p1', '/p2')}, **RULES, robot='robot')
    rig.set_available('/p1', False)
    rig.replicas['/p2'].health.mark_unhealthy('unresponsive: repeated late replies', rig.now_ns)
    rig.advance(FIRST_PROBE_NS)
    rig.request()
    assert rig.servers == ['/p2']


def drained_pair() -> Rig:
    rig = Rig(**RULES, robot='robot')
    rig.slots['b'].health.mark_unhealthy('x', rig.now_ns)
    rig.replicas['/b1'].health.mark_unhealthy('unresponsive: repeated late replies', rig.now_ns)
    return rig


def test_a_dead_replica_does_not_keep_its_slot_from_coming_back():
    """The robot's first choice in slot b is the dead one."""
    rig = drained_pair()
    for _ in range(60):
        raw = rig.request(episode=IN_A)
        rig.advance(100 * MS)
        for server in rig.servers:
            if server != '/b1':
                rig.answer(server, raw)
    assert rig.slots['b'].is_healthy
    assert not rig.replicas['/b1'].is_ready
    assert rig.replicas['/b1'].counts['probes'] >= 1


def test_a_suspect_is_not_tried_for_its_slot():
    rig = drained_pair()
    running = episode_in('b')
    rig.slots['b'].health.mark_healthy()
    rig.round_trip(episode=running)
    rig.slots['b'].health.mark_unhealthy('x', rig.now_ns)
    for _ in range(3):
        rig.replicas['/b1'].health.probe_failed(rig.now_ns)
    rig.advance(FIRST_PROBE_NS)
    rig.forget()
    rig.request(episode=running)
    assert rig.servers == ['/b2']


def test_the_trial_of_a_suspect_is_none_of_its_slot():
    rig = drained_pair()
    rig.replicas['/b1'].health.probe_now()
    raw = rig.request(episode=IN_A)
    assert rig.servers[1:] == ['/b1']
    rig.answer('/b1', raw, Status.POLICY_ERROR)
    rig.advance(FIRST_PROBE_NS)
    rig.forget()
    rig.request(episode=IN_A)
    assert '/b2' in rig.servers


def test_requests_that_nobody_answers_are_trials_of_the_other_slot():
    rig = Rig(SINGLE, **RULES, robot='robot')
    rig.round_trip(episode=IN_A)
    rig.set_available('/a1', False)
    rig.slots['b'].health.mark_unhealthy('x', rig.now_ns)
    rig.replicas['/b1'].health.mark_unhealthy('x', rig.now_ns)
    rig.advance(FIRST_PROBE_NS)
    rig.forget()
    for _ in range(SUCCESSES):
        raw = rig.request(episode=IN_A)
        assert rig.servers == ['/b1']
        rig.answer('/b1', raw)
    assert len(rig.texts) == SUCCESSES
    assert rig.replies == []
    raw = rig.request(episode=IN_A)
    rig.answer('/b1', raw)
    assert [slot for _, _, slot in rig.replies] == ['b']


def test_where_all_replicas_are_suspect_their_trials_are_the_slots():
    rig = drained_pair()
    rig.replicas['/b2'].health.mark_unhealthy('unresponsive: repeated late replies', rig.now_ns)
    for _ in range(60):
        raw = rig.request(episode=IN_A)
        rig.advance(100 * MS)
        for server in rig.servers:
            rig.answer(server, raw)
    assert rig.slots['b'].is_healthy
    assert rig.replicas['/b1'].is_ready
    assert rig.replicas['/b2'].is_ready


def test_no_trial_goes_to_who_has_the_request_already():
    rig = Rig(**RULES, robot='robot')
    running = episode_in('b', salt=1)
    rig.round_trip(episode=running)
    rig.slots['b'].health.mark_unhealthy('x', rig.now_ns)
    rig.advance(FIRST_PROBE_NS)
    rig.forget()
    # its own answers were clean: it stays
    raw = rig.request(episode=running)
    servers = rig.servers
    assert sorted(servers) == list(SLOTS['b'])
    live, trial = servers
    rig.answer(trial, raw)
    assert rig.replies == []
    rig.answer(live, raw)
    assert len(rig.replies) == 1
