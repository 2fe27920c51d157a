"""A router before two policy servers, as robots meet it: nothing tells it from a server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from small_client import SmallClient

from lerobot_serve.ros import qos
from lerobot_serve.ros.calls import call
from lerobot_serve.router.split import bucket
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.schema import Refusal, Status
from lerobot_serve.wire.session import Refused
from lerobot_serve_interfaces.msg import RoutingDecision
from lerobot_serve_interfaces.srv import ResetEpisode

ROUTER = '/policy_router'
SHAPES = {'a': 'joints=6,chunk=30,cameras=,fps=30', 'b': 'joints=6,chunk=20,cameras=,fps=30'}


def start_slot(processes, slot: str):
    return processes.start(
        f'slot_{slot}',
        'policy_server',
        namespace=f'/slot_{slot}',
        policy_kind='null',
        policy_path=SHAPES[slot],
        slot=slot,
    )


@pytest.fixture
def router(processes):
    for slot in SHAPES:
        start_slot(processes, slot)
    return processes.start('router', 'policy_router', split_percent=50, open_timeout_s=20.0)


@pytest.fixture
def client(router, node) -> SmallClient:
    robot = SmallClient(node, ROUTER, cameras=())
    robot.open()
    return robot


def slot_of(client: SmallClient, episode_id: str) -> str:
    chunk = client.round_trip(episode_id=episode_id)
    assert chunk.status == Status.OK
    # the slots' chunks differ in length, so the name is not only a label
    assert len(chunk.robot) == {'a': 30, 'b': 20}[chunk.slot]
    return chunk.slot


def set_split(node, percent: int) -> bool:
    settings = node.create_client(SetParameters, f'{ROUTER}/set_parameters')
    value = Parameter('split_percent', value=percent).to_parameter_msg()
    return call(settings, SetParameters.Request(parameters=[value]), 10.0).results[0].successful


def test_episodes_go_where_their_bucket_says(client):
    for number in range(12):
        name = f'episode-{number}'
        assert slot_of(client, name) == ('a' if bucket(name) < 50 else 'b')


def test_a_change_of_the_split_moves_new_episodes_only(client, node):
    names = [f'old-{number}' for number in range(6)]
    before = [slot_of(client, name) for name in names]
    assert set(before) == {'a', 'b'}
    assert set_split(node, 0)
    assert [slot_of(client, name) for name in names] == before
    assert {slot_of(client, f'new-{number}') for number in range(6)} == {'b'}
    assert set_split(node, 100)
    assert {slot_of(client, f'newer-{number}') for number in range(6)} == {'a'}
    assert not set_split(node, 101)
    assert slot_of(client, 'after-the-refusal') == 'a'


def test_decisions_are_published_once_for_an_episode(client, node, wait_until):
    seen: list[RoutingDecision] = []
    node.create_subscription(RoutingDecision, f'{ROUTER}/routing', seen.append, qos.DECISIONS)
    for _ in range(3):
        slot_of(client, 'ep_42')
    wait_until(lambda: seen, 'the decision is published')
    (decision,) = seen
    assert (decision.bucket, decision.slot, decision.degraded) == (29, 'a', False)
    assert decision.policy.startswith('null@')


def test_without_an_episode_id_routing_is_degraded_and_says_so(client, node, wait_until):
    seen: list[RoutingDecision] = []
    node.create_subscription(RoutingDecision, f'{ROUTER}/routing', seen.append, qos.DECISIONS)
    client.round_trip(episode_id='')
    wait_until(lambda: seen, 'the decision is published')
    assert seen[0].degraded


def test_bad_bytes_do_not_end_it(client):
    for raw in (b'', b'\x00\x01\x00\x00', b'\xff' * 64):
        client.send(raw)
        assert client.round_trip().status == Status.OK


def test_an_unknown_robot_gets_no_answer_and_the_known_one_still_does(client):
    stranger = client.observation(client_id='stranger')
    client.send(wire_observation.encode(stranger))
    old = client.observation()
    client.send(wire_observation.encode(replace(old, header=replace(old.header, session_epoch=9))))
    assert client.round_trip().status == Status.OK


def test_reset_and_close_reach_both_slots(client):
    request = ResetEpisode.Request(client_id='tester', session_epoch=1, episode=1)
    assert client.reset(request).acknowledged
    assert client.close().closed
    assert not client.close().closed


def test_a_slot_that_is_down_refuses_the_session_and_leaves_none_open(processes, node):
    start_slot(processes, 'a')
    processes.start('router', 'policy_router', open_timeout_s=2.0)
    with pytest.raises(Refused, match=r'slot b \(/slot_b/policy_server\)') as refused:
        SmallClient(node, ROUTER, cameras=()).open()
    assert refused.value.code == Refusal.UNREACHABLE


def test_a_robot_that_does_not_fit_is_refused_with_the_slots_reason(router, node):
    with pytest.raises(Refused, match=r'slot a .*action_names') as refused:
        SmallClient(node, ROUTER, cameras=(), action_names=('x',)).open()
    assert refused.value.code == Refusal.ACTION_NAMES
