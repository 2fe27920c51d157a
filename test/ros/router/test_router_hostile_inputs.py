# SPDX-License-Identifier: Apache-2.0
"""What nobody planned for: nonsense on every topic, crowds, and robots that come and go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import os
import random

from msgspec import structs
import pytest
from rclpy.duration import Duration
from support.nodes.router_manager import Manager
from support.nodes.router_rig import LIMIT_S, ROUTER
from support.replacing import replace

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.names import ros_token
from lerobot_serve.contract.schema import Status
from lerobot_serve.links.fake import FakeReplies
from lerobot_serve.links.ros.link import RosLink
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import ActionChunk, Observation, SlotState

pytestmark = pytest.mark.long

SESSIONS, CALLERS, GROWTH_MB = 400, 4, 8.0
ROBOTS, ROUNDS = 30, 20
HEAD = b'\x00\x01\x00\x00'


def publish(rig, kind: type, topic: str, raws: list[bytes]) -> None:
    """Send bytes to the router, as anybody on the network can."""
    publisher = rig.node.create_publisher(kind, topic, qos.ACTION_CHUNK)
    rig.wait(publisher.get_subscription_count, f'the router listens to {topic}')
    for raw in raws:
        publisher.publish(raw)
    assert publisher.wait_for_all_acked(Duration(seconds=LIMIT_S)), 'it did not take all'
    rig.node.destroy_publisher(publisher)


def damaged(raw: bytes, seed: int) -> list[bytes]:
    """Return what may become of a message: cut, with other bytes in it, and noise."""
    chance = random.Random(seed)
    # an empty one would never be acknowledged, nor what its writer sends after it
    cut = [raw[:length] for length in range(1, len(raw), max(1, len(raw) // 40))]
    changed = []
    for _ in range(60):
        data = bytearray(raw)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        changed.append(bytes(data))
    noise = [HEAD + chance.randbytes(chance.randrange(200)) for _ in range(20)]
    return [*cut, *changed, *noise]


def test_nonsense_on_every_topic_ends_nothing(router_rig):
    router_rig.server('a', 'prod')
    router_rig.server('shadow', 'prod', options='&offset=1')
    router_rig.router(slot_prod=['a'], shadow_server='/shadow/policy_server')
    router_rig.wait_for_health('healthy')
    client = router_rig.robot()
    request = client.observation()
    answer = Chunk(
        Header(7, 0, 1, 0, 1, 2), 'tester', 'episode-1', policy=client.round_trip().policy
    )
    chunk = wire_chunk.encode(answer)
    answers = f'{ROUTER}/replies/{ros_token("/a/policy_server")}'
    for kind, topic, raw in (
        (Observation, f'{ROUTER}/observation', wire_observation.encode(request)),
        (ActionChunk, answers, chunk),
        (ActionChunk, f'{ROUTER}/replies/shadow', chunk),
        (ActionChunk, f'{ROUTER}/replies/second_draw', chunk),
    ):
        publish(router_rig, kind, topic, damaged(raw, seed=len(topic)))
    while not client.chunks.empty():
        client.chunks.get()
    # whole answers that nobody asked for: another robot's, an old session's, an old one
    before = router_rig.state.late_replies
    strays = [
        replace(answer, client_id='nobody'),
        replace(answer, header=replace(answer.header, session_epoch=9)),
        replace(answer, header=replace(answer.header, seq=1)),
        replace(answer, client_id=''),
    ]
    publish(router_rig, ActionChunk, answers, [wire_chunk.encode(stray) for stray in strays])
    router_rig.wait(lambda: router_rig.state.late_replies >= before + 4, 'all are counted')
    for _ in range(20):
        asked = client.request()
        # some nonsense is a request in order, and its answer may still be under way
        while (chunk := client.take()).header.seq != asked:
            pass
        assert chunk.status == Status.OK
    assert client.chunks.empty()
    drops = router_rig.drops()
    assert drops['truncated'] > 0
    assert drops['wrong_type'] > 0 or drops['no_session'] > 0
    assert 'Traceback' not in router_rig.log('router')
    assert router_rig.slot('prod').state == SlotState.HEALTHY


@pytest.mark.slow
def test_hundreds_of_sessions_leave_nothing(router_rig):
    router_rig.server('a', 'prod')
    router_rig.router(slot_prod=['a'])
    router_rig.wait_for_health('healthy')
    manager, first = Manager(router_rig), router_rig.robot('first')
    assert first.round_trip().status == Status.OK
    sessions = ServerClient(RosLink(router_rig.node, ROUTER, lifespan_s=3.0), FakeReplies())

    def come_and_go(number: int) -> None:
        name = f'robot_{number}'
        # each is a process of its own
        mine = {'instance': number + 1, 'reply_topic': f'/{name}/action_chunk'}
        ask = structs.replace(first.ask, client_id=name, **mine)
        sessions.open(ask, LIMIT_S)
        assert sessions.close(ask, LIMIT_S).closed

    # from then on it holds the ports of its neighbours, which are not part of a session
    router_rig.wait(manager.watches_ports, 'it watches its ports')
    with ThreadPoolExecutor(CALLERS) as callers:
        first_part = SESSIONS // 4
        list(callers.map(come_and_go, range(first_part)))
        before_mb, files = manager.memory_mb(), manager.files()
        list(callers.map(come_and_go, range(first_part, SESSIONS)))
    after_mb = manager.memory_mb()
    print(f'{before_mb:.1f} MB after {first_part} sessions, {after_mb:.1f} MB after {SESSIONS}')
    assert after_mb < before_mb + GROWTH_MB
    assert manager.files() <= files
    assert manager.drops() == {}
    sessions.end()
    router_rig.wait(lambda: router_rig.state.sessions == 1, 'one robot is left')
    assert manager.sessions_at('a') == 1
    left = [
        number
        for number in range(SESSIONS)
        if router_rig.node.count_publishers(f'/robot_{number}/action_chunk')
    ]
    router_rig.wait(
        lambda: not [n for n in left if publishers(router_rig, n)], 'no reply topic is left'
    )
    assert first.round_trip().status == Status.OK


def publishers(rig, number: int) -> int:
    return rig.node.count_publishers(f'/robot_{number}/action_chunk')


def test_a_robot_that_vanishes_is_swept_once_whatever_its_server_does(router_rig):
    router_rig.slots()
    manager, gone = Manager(router_rig), router_rig.robot('gone')
    stays = router_rig.robot('stays')
    for client in (gone, stays):
        assert client.round_trip(episode_id=router_rig.episode('a')).status == Status.OK
    # to close its session takes time
    router_rig.hang('b')
    gone.replies.close()
    router_rig.wait(lambda: router_rig.state.sessions == 1, 'it is gone')
    router_rig.wait(
        lambda: not router_rig.node.count_publishers('/gone/action_chunk'), 'its topic, too'
    )
    router_rig.go_on('b')
    router_rig.wait(lambda: manager.drops().get('client_gone'), 'it is counted')
    assert manager.drops()['client_gone'] == 1
    assert router_rig.log('router').count("closed the session of 'gone'") == 1
    assert stays.round_trip(episode_id=router_rig.episode('a')).status == Status.OK
    router_rig.wait(lambda: manager.sessions_at('a') == 1, 'one session is left')


@pytest.mark.slow
def test_a_crowd_gets_every_answer_once(router_rig):
    for name in ('a', 'b'):
        router_rig.server(name, name, max_sessions=ROBOTS)
    router_rig.router(slot_a=['a'], slot_b=['b'], reply_timeout_s=20.0, hedge_factor=0.0)
    router_rig.wait_for_health('healthy')
    robots = [router_rig.robot(f'robot_{number}') for number in range(ROBOTS)]
    slots = {robot: 'ab'[number % 2] for number, robot in enumerate(robots)}
    for number in range(ROUNDS):
        asked = {
            robot: robot.request(episode_id=router_rig.episode(slot, salt=robot.ask.client_id))
            for robot, slot in slots.items()
        }
        for robot, seq in asked.items():
            chunk = robot.take(LIMIT_S)
            assert (chunk.header.seq, chunk.client_id) == (seq, robot.ask.client_id)
            assert (chunk.status, chunk.slot) == (Status.OK, slots[robot]), number
    router_rig.wait(
        lambda: sum(s.chunks for s in router_rig.state.slots) == ROBOTS * ROUNDS, 'all counted'
    )
    assert all(robot.chunks.empty() for robot in robots)
    state = router_rig.state
    assert [s.requests for s in state.slots] == [ROBOTS * ROUNDS // 2] * 2
    assert (state.sessions, state.late_replies, state.hedges) == (ROBOTS, 0, 0)
    assert [s.episodes for s in state.slots] == [ROBOTS // 2] * 2


def test_parameters_act_while_robots_are_served(router_rig):
    router_rig.slots(reply_timeout_s=20.0, shadow_minimum_episodes=0)
    client, episode = router_rig.robot(), router_rig.episode('b')
    assert client.round_trip(episode_id=episode).slot == 'b'
    assert 'reply_timeout_s' in router_rig.set(reply_timeout_s=0.0)
    for name in ('slot_a', 'standby_replicas', 'slot_unhealthy_threshold', 'state_folder'):
        value = {'slot_a': ['/x'], 'state_folder': os.sep}.get(name, 3)
        assert 'while the node is configured' in router_rig.set(**{name: value})
    # a policy of slot b that lacks time in shadow takes no more episodes from now on
    assert not router_rig.set(shadow_minimum_episodes=3)
    router_rig.wait_for_health('slot_b_drained')
    assert client.round_trip(episode_id=router_rig.episode('b', salt='new')).slot == 'a'
    assert client.round_trip(episode_id=episode).slot == 'b'
    assert not router_rig.set(shadow_minimum_episodes=0)
    router_rig.wait_for_health('healthy')
    # a time for answers that is long would keep this robot waiting
    assert not router_rig.set(reply_timeout_s=0.1)
    router_rig.hang('b')
    chunk = client.round_trip(episode_id=episode)
    assert (chunk.status, chunk.slot) == (Status.OK, 'a')
