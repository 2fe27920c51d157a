# SPDX-License-Identifier: Apache-2.0
"""Callers of a gateway have sessions of their own at a real router with two servers."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from support.gateway.node_rig import caller, STATE
from support.network.ports import free_port
from support.nodes.zenoh_links import both_links, every_link

from lerobot_serve.gateway.callers.predictions import PredictionError, Status

SERVER = '/a/policy_server'


@pytest.mark.slow
@both_links
def test_two_callers_keep_their_slots_also_when_the_router_was_killed_and_is_back(
    router_rig, gateway
):
    router_rig.slots(split_percent=50)
    rig = gateway()
    names = {slot: router_rig.episode(slot, owner='127.0.0.1/') for slot in ('a', 'b')}
    for _ in range(3):
        asked = {slot: rig.ask(slot, episode_id=names[slot], task=slot) for slot in names}
        for slot, each in asked.items():
            prediction = each.result(30)
            assert prediction.slot == slot
            assert prediction.actions.shape == (30, 6)
            assert np.allclose(prediction.actions[0], STATE)
            assert prediction.policy == 'steered'
    assert rig.gateway.counters.requests == {('http', 'ok'): 6}
    sessions = {f'gateway/http/127.0.0.1:{slot}' for slot in names}
    for slot in names:
        seen = router_rig.steering(slot).events('predict')
        assert {line.split()[1].partition('#')[0] for line in seen} <= sessions
    router_rig.wait(lambda: router_rig.state.sessions == 2, 'two sessions')
    assert not rig.gateway.counters.dropped
    router_rig.kill('router')
    # the health of the next one is waited for below
    router_rig.watch.last.clear()
    # until its lease has expired, a request waits for the reply
    refused = refusal(rig.ask('a', episode_id=names['a']))
    assert refused.status in (Status.UNAVAILABLE, Status.TOO_LATE)
    router_rig.wait(lambda: rig.node._why_not_ready(), 'the gateway is not ready')
    refused = refusal(rig.ask('a'))
    assert refused.status is Status.UNAVAILABLE
    assert refused.retry_after_s > 0
    assert 'retry later' in refused.text
    assert refusal(rig.ask('new')).status is Status.UNAVAILABLE
    router_rig.router(slot_a=['a'], slot_b=['b'])
    router_rig.wait_for_health('healthy')
    router_rig.wait(lambda: not rig.node._why_not_ready(), 'the gateway is ready')
    for slot in names:
        assert rig.predict(slot, episode_id=names[slot]).slot == slot


def refusal(asked) -> PredictionError:
    with pytest.raises(PredictionError) as refused:
        asked.result(30)
    return refused.value


def test_a_server_that_restarts_in_order_is_used_again_as_soon_as_it_is_ready(router_rig, gateway):
    router_rig.server('a', 'prod')
    rig = gateway(server=SERVER, request_timeout_s=20.0)
    assert rig.predict('one').sequence == 1
    router_rig.fleet.processes['a'].terminate()
    router_rig.fleet.processes['a'].wait(30)
    router_rig.server('a', 'prod')

    def served() -> bool:
        try:
            return bool(rig.predict('one').sequence)
        except PredictionError as error:
            # it does not wait for a reply that cannot come
            assert (error.status, error.retry_after_s) == (Status.UNAVAILABLE, 1.0)
            return False

    router_rig.wait(served, 'a prediction of the new server')


def test_a_caller_that_is_faster_than_the_policy_gets_its_newest_request_or_too_late(
    router_rig, gateway
):
    router_rig.server('a', 'prod')
    steering = router_rig.steering('a')
    steering.turns.close_gate()
    rig = gateway(server=SERVER)
    first = rig.ask('fast')
    router_rig.wait(lambda: steering.events('predict'), 'the first request runs')
    second, third = rig.ask('fast'), rig.ask('fast', state=2 * STATE)
    assert refusal(second).status is Status.SUPERSEDED
    steering.turns.let(2)
    assert first.result(30).sequence == 1
    newest = third.result(30)
    assert newest.sequence == 2
    assert np.allclose(newest.actions[0], 2 * STATE)
    assert refusal(rig.ask('fast', timeout_s=1.0)).status is Status.TOO_LATE
    steering.turns.open_gate()
    # one, unless the machine was too busy to send the late request in its time
    late = rig.predict('fast').sequence - 3
    counters = rig.gateway.counters
    router_rig.wait(lambda: counters.dropped['late_chunk'] == late, 'the late reply is counted')
    assert counters.requests == {
        ('http', 'ok'): 3,
        ('http', 'superseded'): 1,
        ('http', 'too_late'): 1,
    }


@every_link
def test_twenty_callers_at_once_share_one_reply_topic(router_rig, gateway):
    router_rig.server('a', 'prod', max_sessions=32)
    rig = gateway(server=SERVER)
    for _ in range(2):
        asked = [rig.ask(str(i), state=np.full(6, i, np.float32)) for i in range(20)]
        for i, each in enumerate(asked):
            assert np.allclose(each.result(30).actions, i)
    assert rig.gateway.counters.callers == {'http': 20}
    assert not rig.gateway.counters.dropped


def test_what_a_server_says_reaches_the_caller(router_rig, gateway):
    router_rig.server('a', 'prod', max_sessions=1)
    rig = gateway(server=SERVER)
    contract = rig.run(rig.gateway.describe())
    assert contract.action_names == tuple(f'joint_{i}.pos' for i in range(6))
    assert (contract.policy, contract.chunk_steps, contract.control_hz) == ('steered', 30, 30.0)
    for task, status, text in (
        ('nan', Status.NOT_FINITE, 'NaN'),
        ('raise', Status.FAILED, 'raised on purpose'),
    ):
        refused = refusal(rig.ask('one', task=task))
        assert refused.status is status
        assert text in refused.text
    assert refusal(rig.ask('one', state=STATE[:3])).status is Status.INVALID
    refused = refusal(rig.ask('two'))
    assert refused.status is Status.OVERLOADED
    assert 'max_sessions' in refused.text or 'sessions' in refused.text
    # its place is free once the first one has left
    rig.run(rig.gateway.release(caller('one')))
    assert rig.predict('two').slot == 'prod'


def test_a_policy_with_a_memory_begins_anew_with_each_episode_of_a_caller(router_rig, gateway):
    shape = 'joints=6,chunk=30,cameras=,fps=30'
    router_rig.fleet.start(
        'a', 'policy_server', namespace='/a', policy_kind='recurrent', policy_path=shape
    )
    rig = gateway(server=SERVER)

    def remembers(value: float, **changes: object) -> bool:
        actions = rig.predict('one', state=np.full(6, value, np.float32), **changes).actions
        return not np.allclose(actions, value)

    assert not remembers(1.0, episode_id='first')
    assert remembers(2.0, episode_id='first')
    assert remembers(3.0)
    assert not remembers(4.0, episode_id='second')
    assert remembers(5.0)
    assert not remembers(6.0, episode_start=True)
    assert 'rejected the reset' not in router_rig.log('a')


def test_without_a_router_callers_are_refused_and_the_endpoint_says_why(gateway):
    port = free_port()
    rig = gateway(server='/nobody', metrics_port=port)
    refused = refusal(rig.ask('one'))
    assert (refused.status, refused.retry_after_s) == (Status.UNAVAILABLE, 1.0)
    assert '/nobody' in refused.text
    with pytest.raises(HTTPError) as not_ready:
        urlopen(f'http://127.0.0.1:{port}/readyz', timeout=10)
    assert b'/nobody' in not_ready.value.read()
    with urlopen(f'http://127.0.0.1:{port}/metrics', timeout=10) as page:
        refusals = b'gateway_refused_total{protocol="http",reason="unavailable"} 1.0'
        assert refusals in page.read()
