# SPDX-License-Identifier: Apache-2.0
"""Two replicas of one slot: a slow one is helped out, an answer is never given twice."""

from __future__ import annotations

import queue

import pytest
from support.nodes.router_rig import LIMIT_S
from support.nodes.small_client import SmallClient
from support.nodes.zenoh_links import every_link

from lerobot_serve.contract.names import node_name
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.links.fake import FakeReplies
from lerobot_serve.links.ros.link import RosLink
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve_interfaces.msg import ReplicaState, RouterState

ENOUGH = 25


def pair(rig, options: str = '', **router: object) -> None:
    """Start one slot with two replicas of one policy; a timeout is far away."""
    for name in ('one', 'two'):
        rig.server(name, 'prod', policy='p', options=options)
    rig.router(slot_prod=['one', 'two'], **{'reply_timeout_s': 10.0, **router})
    rig.wait_for_health('healthy')


def warm(rig, client, episode: str = 'episode-1') -> str:
    """Let it learn how long answers take; return the replica that gives them."""
    for _ in range(ENOUGH):
        assert client.round_trip(episode_id=episode).status == Status.OK
    return rig.wait_for_decision(episode).server.split('/')[1]


def who_answers(rig, client) -> str:
    """Return the replica that a robot asks now."""

    def asked() -> dict[str, int]:
        present(rig)
        return {name: replica(rig, name).requests for name in ('one', 'two')}

    before = asked()
    assert client.round_trip().status == Status.OK
    after = asked()
    (name,) = (name for name in before if after[name] > before[name])
    return name


def replica(rig, name: str) -> ReplicaState:
    replicas = rig.slot('prod').replicas
    return next(r for r in replicas if node_name(r.server) == f'/{name}/policy_server')


def other_than(name: str) -> str:
    return 'two' if name == 'one' else 'one'


@every_link
def test_a_slow_replica_is_helped_out_and_its_late_answer_reaches_nobody(router_rig):
    pair(router_rig)
    client = router_rig.robot()
    slow = warm(router_rig, client)
    router_rig.hang(slow)
    chunk = client.round_trip()
    assert (chunk.status, chunk.header.flags) == (Status.OK, 0)
    router_rig.wait(lambda: router_rig.state.hedges_won, 'the second replica was first')
    assert router_rig.state.hedges >= router_rig.state.hedges_won
    assert replica(router_rig, other_than(slow)).hedges >= 1
    late = router_rig.state.late_replies
    router_rig.go_on(slow)
    router_rig.wait(lambda: router_rig.state.late_replies > late, 'the late answer came')
    # and went nowhere: the next thing that the robot gets answers its next request
    for _ in range(ENOUGH):
        assert client.round_trip().status == Status.OK
    assert client.chunks.empty()
    assert router_rig.slot('prod').requests_failed == 0


def present(rig) -> RouterState:
    """Return a state that is told from now on."""
    rig.watch.last.pop(RouterState, None)
    return rig.state


@every_link
@pytest.mark.slow
def test_what_has_state_is_never_asked_twice_and_says_when_it_was_lost(router_rig):
    pair(router_rig, '&state=recurrent', reply_timeout_s=0.5)
    client = router_rig.robot()
    warm(router_rig, client)
    # on a busy machine an answer was perhaps overdue, and it has moved by now
    first = who_answers(router_rig, client)
    router_rig.hang(first)
    # it waits for the timeout, and only then is another one asked
    chunk = client.round_trip()
    assert chunk.status == Status.OK
    assert chunk.header.flags & Flag.STATE_LOST
    router_rig.go_on(first)
    second = other_than(first)
    assert not client.round_trip().header.flags & Flag.STATE_LOST
    router_rig.wait(
        lambda: client.round_trip() and replica(router_rig, first).state == ReplicaState.READY,
        'the first one is well again',
    )
    router_rig.kill(second)
    chunk = client.round_trip()
    assert (chunk.status, chunk.header.flags) == (Status.OK, Flag.STATE_LOST)
    assert client.round_trip().header.flags == 0
    router_rig.wait(
        lambda: replica(router_rig, second).state != ReplicaState.READY, 'that it is gone is seen'
    )
    # another episode has lost nothing
    assert client.round_trip(episode_id='episode-2', episode=1).header.flags == 0
    router_rig.wait(lambda: router_rig.slot('prod').requests >= ENOUGH + 5, 'a new state')
    assert present(router_rig).hedges == 0
    assert {r.hedges for r in router_rig.slot('prod').replicas} == {0}


@every_link
def test_sessions_that_replicas_have_lost_are_opened_again(router_rig):
    pair(router_rig, reply_timeout_s=0.3)
    client = router_rig.robot()
    warm(router_rig, client)
    for name in ('one', 'two'):
        # behind the router's back, as by a server that was started anew in no time
        link = RosLink(router_rig.node, f'/{name}/policy_server', lifespan_s=1.0)
        session = ServerClient(link, FakeReplies())
        assert session.close(client.ask, LIMIT_S).closed
    router_rig.wait(lambda: is_answered(client), 'the robot is answered again')
    router_rig.wait(
        lambda: (
            is_answered(client)
            and {r.state for r in router_rig.slot('prod').replicas} == {ReplicaState.READY}
        ),
        'both are well again',
    )


def is_answered(client: SmallClient) -> bool:
    """Ask once; who is not answered in time asks again."""
    seq = client.request()
    try:
        chunk = client.take(limit_s=2.0)
    except queue.Empty:
        return False
    return (chunk.header.seq, chunk.status) == (seq, Status.OK)
