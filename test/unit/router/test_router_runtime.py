# SPDX-License-Identifier: Apache-2.0
"""The begin and the end of a router: its threads, and what it lets go."""

from __future__ import annotations

import pytest
from support.router.dispatch_rig import episode_in, request_bytes
from support.router.router_core_rig import TWO_SLOTS
from support.router.runtime_rig import RuntimeRig, status

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.canary.facts import ArmCounts
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.core import RouterCore


@pytest.fixture
def rig(tmp_path):
    return RuntimeRig(tmp_path)


def test_its_threads_end_and_everything_is_let_go(rig):
    routing = rig.routing()
    routing.begin()
    robot = rig.robot()
    assert rig.core.is_open
    routing.close()
    assert not any(thread.is_alive() for thread in rig.threads)
    assert sorted(thread.name for thread in rig.threads) == [
        'alarm',
        'control',
        'replies',
        'store',
    ]
    assert rig.behind.closed
    assert rig.core.table.sessions.current('robot') is None
    for name in robot.places['a'] + robot.places['b']:
        assert 'close' in rig.clients[name].calls
    # once more hurts nobody, and work comes too late
    routing.close()
    assert not rig.core.jobs.put(int)


def test_a_router_that_goes_away_refuses_and_says_so(rig):
    routing = rig.routing()
    raw = request_bytes('robot', 1, 'e')
    rig.core.on_request(raw)
    assert rig.drops.counts() == {'no_session': 1}
    routing.begin()
    rig.robot()
    rig.core.on_request(raw)
    (sent,) = rig.outside.sent
    assert sent[1] == raw
    flight = rig.core.table.in_flight.newest('robot')
    flight.end()
    routing.drain()
    assert (rig.core.is_open, rig.core.is_drained) == (False, True)
    rig.core.on_request(raw)
    chunk = wire_chunk.decode(rig.sent[-1])
    assert (chunk.status, chunk.header.seq) == (Status.DRAINING, 1)
    assert len(rig.outside.sent) == 1
    routing.begin()
    rig.core.on_request(raw)
    assert len(rig.outside.sent) == 2
    routing.close()


def test_a_late_answer_to_a_router_that_is_closed_hurts_nobody(rig):
    routing = rig.routing()
    routing.begin()
    routing.close()
    rig.behind.on_reply('/a1', b'')
    rig.behind.on_status('/a1', status('/a1'))
    assert rig.drops.counts()['encapsulation'] == 1


def test_a_folder_in_use_is_free_again_after_the_end(rig, tmp_path):
    rig.routing().close()
    again = RuntimeRig(tmp_path)
    assert isinstance(again.core, RouterCore)
    again.close()


@pytest.mark.parametrize('how', ['close', 'drain'])
def test_outcomes_that_were_accepted_just_before_the_end_count(tmp_path, how):
    given = {**TWO_SLOTS, 'canary_plan': ('50', '100')}
    rig = RuntimeRig(tmp_path, **given)
    routing = rig.routing()
    routing.begin()
    for _ in range(2):
        rig.core.update_canary()
    assert rig.core.canary.canary.state is CanaryPhase.RUNNING
    rig.robot()
    rig.core.on_request(request_bytes('robot', 1, episode_in('b')))
    rig.core.table.in_flight.newest('robot').end()
    assert rig.core.record_outcome(episode_in('b'), 1).is_accepted
    # servers that end with the router are no reason for a verdict
    rig.away('/b1')
    if how == 'drain':
        routing.drain()
    routing.close()
    again = RuntimeRig(tmp_path, **given)
    canary = again.core.canary.canary
    assert canary.state is CanaryPhase.RUNNING
    assert canary.record.trial.totals['candidate'] == ArmCounts(begun=1, success=1)
    again.close()
