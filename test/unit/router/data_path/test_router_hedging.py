# SPDX-License-Identifier: Apache-2.0
"""Second tries: when, how many, of whom; and a replica that has died."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.router.dispatch_rig import episode_in, MS, Rig, ROUTING, SECOND, SLOTS, TIMEOUT_NS

from lerobot_serve.contract.schema import Flag, StateClass, Status
from lerobot_serve.router.data_path.hedging import HEDGE_BURST, HEDGE_FLOOR_NS, Hedging
from lerobot_serve.router.replicas.slot_stats import SlotStats

PROD = {'prod': ('/p1', '/p2')}
ALONE = {'prod': ('/p1',)}
ANSWER_NS = 10 * MS
# twice the p95 of round trips of ANSWER_NS
LATE_NS = 2 * ANSWER_NS


def warm(slots=PROD, **more) -> Rig:
    """Everybody answers within ANSWER_NS; one robot."""
    rig = Rig(slots, **more, robot='robot')
    for _ in range(32):
        rig.round_trip(ns=ANSWER_NS)
    rig.forget()
    return rig


def test_a_second_replica_is_asked_when_the_first_is_late_and_the_first_answer_counts():
    rig = warm()
    raw = rig.request()
    (first,) = rig.servers
    rig.advance(LATE_NS - 1)
    assert rig.servers == []
    rig.advance(1)
    (second,) = rig.servers
    assert {first, second} == set(PROD['prod'])
    rig.answer(second, raw)
    assert len(rig.replies) == 1
    assert rig.dispatcher.hedging.won == 1
    rig.answer(first, raw)
    assert (rig.replies, rig.drop('late_reply')) == ([], 1)
    assert rig.dispatcher.hedging.hedges == 1
    assert rig.replicas[second].counts['hedges'] == 1


def test_the_first_may_still_win():
    rig = warm()
    raw = rig.request()
    first = rig.servers[0]
    rig.advance(LATE_NS)
    second = rig.servers[0]
    rig.answer(first, raw)
    rig.answer(second, raw)
    assert len(rig.replies) == 1
    assert (rig.dispatcher.hedging.won, rig.drop('late_reply')) == (0, 1)
    # the robot stays with whom it had
    rig.request()
    assert rig.servers == [first]


def test_a_second_answer_without_actions_is_counted_as_late_too():
    rig = warm()
    raw = rig.request()
    first = rig.servers[0]
    rig.advance(LATE_NS)
    rig.answer(rig.servers[0], raw)
    rig.answer(first, raw, Status.POLICY_ERROR)
    assert (len(rig.replies), rig.drop('late_reply')) == (1, 1)


def test_one_that_fails_waits_for_the_other_that_was_asked():
    rig = warm()
    raw = rig.request()
    first = rig.servers[0]
    rig.advance(LATE_NS)
    second = rig.servers[0]
    rig.answer(first, raw, Status.POLICY_ERROR)
    assert (rig.replies, rig.texts, rig.servers) == ([], [], [])
    rig.answer(second, raw)
    assert len(rig.replies) == 1
    assert rig.slots['prod'].health.failures == 0


def test_nobody_is_hedged_before_enough_answers_are_known():
    rig = Rig(PROD, robot='robot')
    for _ in range(10):
        rig.round_trip(ns=ANSWER_NS)
    rig.forget()
    rig.request()
    rig.advance(TIMEOUT_NS - 1)
    assert len(rig.servers) == 1


def test_a_hedge_comes_no_sooner_than_the_floor():
    rig = Rig(PROD, robot='robot')
    for _ in range(32):
        rig.round_trip(ns=MS // 10)
    rig.forget()
    rig.request()
    rig.advance(HEDGE_FLOOR_NS - 1)
    assert len(rig.servers) == 1
    rig.advance(1)
    assert len(rig.servers) == 1


def test_no_hedges_with_a_factor_of_zero_or_one_replica():
    never = warm(routing=replace(ROUTING, hedge_factor=0.0))
    alone = warm(ALONE)
    for rig in (never, alone):
        rig.request()
        rig.advance(TIMEOUT_NS - 1)
        assert len(rig.servers) == 1
        assert rig.dispatcher.hedging.hedges == 0


@pytest.mark.parametrize('state_class', [StateClass.RECURRENT, StateClass.EXCLUSIVE])
def test_what_keeps_state_is_never_hedged_and_a_move_says_that_it_was_lost(state_class):
    rig = warm(classes={'prod': state_class})
    raw = rig.request()
    rig.forget()
    rig.advance(TIMEOUT_NS - 1)
    assert rig.servers == []
    rig.advance(1)
    (second,) = rig.servers
    rig.answer(second, raw)
    assert [flags for _, flags, _ in rig.replies] == [Flag.STATE_LOST]
    rig.forget()
    assert rig.round_trip() == second
    assert [flags for _, flags, _ in rig.replies] == [0]
    assert rig.dispatcher.hedging.hedges == 0


def test_state_is_lost_between_two_requests_too():
    rig = warm(classes={'prod': StateClass.RECURRENT})
    first = rig.round_trip()
    rig.forget()
    rig.set_available(first, False)
    second = rig.round_trip()
    assert first != second
    assert [flags for _, flags, _ in rig.replies] == [Flag.STATE_LOST]
    # whoever comes back has missed what happened meanwhile, and nobody goes back to it
    rig.set_available(first, True)
    assert rig.round_trip() == second
    assert [flags for _, flags, _ in rig.replies] == [0]
    # a new episode has no state to lose
    rig.set_available(second, False)
    rig.round_trip(episode='another')
    assert [flags for _, flags, _ in rig.replies] == [0]


def test_a_slot_that_is_slow_uses_up_its_own_budget_only():
    rig = Rig()
    for number in range(60):
        rig.robot(f'robot-{number}')
    for slot in 'ab':
        for number in range(40):
            rig.round_trip(f'robot-{number}', episode_in(slot, number), ANSWER_NS)
    rig.forget()
    for number in range(40):
        rig.request(f'robot-{number}', episode_in('b', number))
    rig.advance(LATE_NS)
    assert len(rig.servers) == 40 + HEDGE_BURST
    raw = rig.request('robot-50', episode_in('a'))
    rig.advance(LATE_NS)
    first, second = rig.servers
    assert {first, second} == set(SLOTS['a'])
    rig.answer(second, raw)
    assert len(rig.replies) == 1


def test_a_burst_after_a_rest_that_is_late_silences_nobody():
    rig = warm()
    rig.advance(10 * SECOND)
    for number in range(12):
        rig.robot(f'robot-{number}')
        rig.request(f'robot-{number}', f'episode-{number}')
    rig.advance(LATE_NS)
    assert all(replica.is_ready for replica in rig.replicas.values())


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=300))
def test_the_budget_is_a_burst_and_a_share(script):
    hedging, earned, spent = Hedging(SlotStats(('a',), 1), ['a']), 0.0, 0
    for earns, percent in script:
        if earns:
            hedging.earn('a', replace(ROUTING, hedge_budget_percent=percent))
            earned += percent / 100
        else:
            spent += hedging.spend('a', ROUTING)
        assert spent <= HEDGE_BURST + earned + 1e-6


@settings(max_examples=20)
@given(st.floats(0, 50), st.integers(1, 120))
def test_hedges_keep_to_the_budget_however_slow_all_are(percent, count):
    rig = warm(
        {'prod': ('/p1', '/p2', '/p3')}, routing=replace(ROUTING, hedge_budget_percent=percent)
    )
    for _ in range(count):
        raw = rig.request()
        first = rig.servers[0]
        rig.advance(10 * LATE_NS)
        # slow and alive
        rig.answer(first, raw)
    hedges = rig.dispatcher.hedging.hedges
    assert hedges <= HEDGE_BURST + (32 + count) * percent / 100 + 1
    assert (hedges > 0) == (percent > 0)


def test_all_would_be_asked_twice_and_the_budget_says_no():
    rig = warm(routing=replace(ROUTING, hedge_factor=0.1))
    for _ in range(500):
        raw = rig.request()
        rig.advance(ANSWER_NS)
        for server in rig.servers:
            rig.answer(server, raw)
    allowed = HEDGE_BURST + (32 + 500) * ROUTING.hedge_budget_percent / 100
    assert allowed - 5 <= rig.dispatcher.hedging.hedges <= allowed


# a replica that has died: others answer, nobody waits for it, and once it is back it is used


def test_the_other_answers_from_the_first_late_one_on_and_nobody_waits_for_a_silent_one():
    rig = warm()
    rig.now_ns += SECOND
    dead = rig.round_trip()
    waits = []
    for _ in range(8):
        raw, began_ns = rig.request(), rig.now_ns
        rig.outside.replies.clear()
        while not rig.outside.replies:
            for server, _ in tuple(rig.outside.sent):
                if server != dead:
                    rig.answer(server, raw)
            rig.outside.sent.clear()
            rig.advance(MS)
        waits.append((rig.now_ns - began_ns) // MS)
        rig.advance(50 * MS)
    assert all(wait <= LATE_NS // MS + 5 for wait in waits[:4])
    assert waits[-3:] == [1, 1, 1]
    assert rig.replicas[dead].health.reason == 'unresponsive: repeated late replies'
    assert rig.slots['prod'].is_healthy
    assert rig.slots['prod'].health.failures == 0


def test_all_that_a_silent_one_owes_is_asked_of_others_at_once():
    rig = warm(routing=replace(ROUTING, hedge_budget_percent=0.0))
    for _ in range(int(HEDGE_BURST)):
        rig.request()
        rig.advance(LATE_NS)
        rig.answer('/p1', rig.outside.sent[-1][1])
        rig.answer('/p2', rig.outside.sent[-1][1])
    rig.forget()
    # nothing is left of the budget, and all begin at /p1
    rig.replicas['/p2'].preferring_sessions += 1000
    for number in range(100):
        rig.robot(f'robot-{number}', {'prod': ('/p1', '/p2')})
        rig.request(f'robot-{number}', '')
        rig.advance(5 * MS)
        if not rig.replicas['/p1'].is_ready:
            break
    asked = rig.servers
    assert rig.replicas['/p1'].health.reason == 'unresponsive: repeated late replies'
    owed = asked.count('/p1')
    assert owed > 10
    assert asked.count('/p2') == owed
    assert len(rig.table.in_flight) == owed


def test_one_that_is_only_slow_is_not_silent():
    rig = warm()
    slow = rig.round_trip()
    for _ in range(50):
        raw = rig.request()
        rig.advance(3 * LATE_NS)
        rig.answer(slow, raw)
    assert rig.replicas[slow].is_ready


def test_one_that_is_back_is_used_again():
    rig = warm()
    dead = rig.round_trip()
    rig.replicas[dead].health.mark_unhealthy('unresponsive: repeated late replies', rig.now_ns)
    for _ in range(20):
        raw = rig.request()
        rig.advance(200 * MS)
        for server in rig.servers:
            rig.answer(server, raw)
    assert rig.replicas[dead].is_ready
    assert rig.replicas[dead].counts['probes'] == 3
    # a new episode begins where it is less busy
    other = next(server for server in PROD['prod'] if server != dead)
    rig.replicas[other].preferring_sessions += 3
    assert rig.round_trip(episode='another') == dead


def test_one_dead_replica_of_two_does_not_drain_the_slot_even_without_standby():
    rig = Rig(PROD)
    for number in range(20):
        rig.robot(f'robot-{number}', {'prod': (PROD['prod'][number % 2],)})
    for _ in range(3):
        raws = [rig.request(f'robot-{number}', f'e-{number}') for number in range(20)]
        for number in range(1, 20, 2):
            rig.answer('/p2', raws[number])
        rig.advance(TIMEOUT_NS)
    assert rig.slots['prod'].is_healthy
    assert rig.slots['prod'].health.failures == 0
    assert not rig.replicas['/p1'].is_ready
