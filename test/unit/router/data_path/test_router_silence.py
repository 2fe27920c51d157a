# SPDX-License-Identifier: Apache-2.0
"""A replica that has died: others answer, nobody waits for it, and once it is back it is used."""

from __future__ import annotations

from dataclasses import replace

from support.router.dispatch_rig import MS, Rig, ROUTING, SECOND, TIMEOUT_NS

from lerobot_serve.router.data_path.rules import HEDGE_BURST

PROD = {'prod': ('/p1', '/p2')}
ALONE = {'prod': ('/p1',)}
ANSWER_NS = 10 * MS
# twice the p95 of round trips of ANSWER_NS
LATE_NS = 2 * ANSWER_NS


def warm(slots=PROD, **more) -> Rig:
    """Everybody answers within ANSWER_NS; one robot."""
    rig = Rig(slots, **more)
    rig.robot()
    for _ in range(32):
        rig.round_trip(ns=ANSWER_NS)
    rig.forget()
    return rig


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
    rig.replicas['/p2'].robots += 1000
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
    assert len(rig.dispatcher.in_flight) == owed


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
    rig.replicas[other].robots += 3
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
