# SPDX-License-Identifier: Apache-2.0
"""
Quotas at a router, over both links: a flood gets its status and time, others get their chunks.
"""

from __future__ import annotations

import pytest
from support.nodes.edge_rig import BUFFERED, EdgeRig
from support.nodes.predict_chunk_rig import answered, refused
from support.nodes.router_rig import ROUTER
from support.nodes.server_rig import ServerRig
from support.nodes.zenoh_links import both_links

from lerobot_serve.contract.data_path.chunk import RETRY_AFTER, retry_after_s
from lerobot_serve.contract.schema import Status
from lerobot_serve_interfaces.msg import EdgeState

FLOOD = 40
# seven seconds a chunk, of which the next is asked for after two
LONG = '&chunk=210&rtc=1'
PATIENT = {**BUFFERED, 'rtc': True, 'request_timeout_s': 4.0}


@pytest.mark.slow
@both_links
def test_a_flood_is_refused_with_a_time_and_others_are_served(router_rig):
    router_rig.slots(quotas=['robot flood: 1 requests/s', 'robot *: 1000 requests/s'])
    flood, other = router_rig.robot('flood'), router_rig.robot('other')
    chunks = [flood.round_trip(episode_id='long') for _ in range(FLOOD)]
    refusals = [chunk for chunk in chunks if chunk.status == Status.QUOTA]
    # a burst of two seconds, and what came meanwhile
    assert len(refusals) > FLOOD // 2
    assert {chunk.status for chunk in chunks} == {Status.OK, Status.QUOTA}
    assert all(0 < retry_after_s(chunk) <= 1.0 for chunk in refusals)
    assert 'quota of robot flood is used up (1 requests/s)' in refusals[0].status_text
    assert all(other.round_trip().status == Status.OK for _ in range(FLOOD))
    router_rig.wait_for_drop('quota', len(refusals))
    # live, as a split is
    assert not router_rig.set(quotas=['robot flood: 500 requests/s'])
    assert all(flood.round_trip().status == Status.OK for _ in range(FLOOD))


def test_inference_uses_a_quota_up(router_rig):
    router_rig.slots(quotas=['group *: 0.01 inference_ms/s'])
    client = router_rig.robot()
    statuses = [client.round_trip(episode_id='one').status for _ in range(200)]
    assert statuses[0] == Status.OK and Status.QUOTA in statuses


def test_a_goal_without_a_session_counts_too(router_rig):
    router_rig.slots(quotas=['robot *: 0.01 requests/s'])
    caller = ServerRig(router_rig.node, router_rig.fleet, None, ROUTER)
    try:
        answered(caller, 'one')
        chunk = refused(caller, 'one')
        assert chunk.status == Status.QUOTA
        assert chunk.extensions[0].key == RETRY_AFTER
    finally:
        caller.end()


@pytest.mark.slow
def test_a_robot_with_less_than_it_asks_for_plays_on_and_asks_less(node, router_rig, tmp_path):
    router_rig.server('one', 'prod', options=LONG)
    # it would ask for the next chunk after two seconds, and gets one in four
    router_rig.router(slot_prod=['one'], quotas=['robot *: 0.25 requests/s'], quota_burst_s=4.0)
    router_rig.wait_for_health('healthy')
    edge = EdgeRig(node, router_rig.fleet, tmp_path)
    try:
        edge.start(servers=[ROUTER], **PATIENT)
        edge.wait_for_play()
        edge.wait(lambda: edge.seen.drops().get('quota', 0) >= 2, 'two requests are refused')
        begin = edge.seen.last
        edge.wait(
            lambda: edge.seen.last.chunks_accepted >= begin.chunks_accepted + 2, 'two more chunks'
        )
        seen = edge.seen
        assert seen.last.stalls == 0
        assert seen.rungs == {EdgeState.RUNG_POLICY}
        # one refusal for each chunk, not one for each control step
        refusals = seen.drops()['quota']
        assert refusals <= 2 * (seen.last.chunks_accepted + 1)
    finally:
        edge.end()
