# SPDX-License-Identifier: Apache-2.0
"""Two routers of one site, in processes of their own, with a real PostgreSQL between them."""

from __future__ import annotations

import signal
import time

import pytest
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.srv import GetParameters
from rclpy.parameter import Parameter
from support.nodes.edge_rig import BUFFERED, EdgeRig
from support.nodes.router_rig import QUICK, ROUTER
from support.nodes.service_asking import ask
from support.nodes.small_client import SmallClient
from support.postgres.server import postgres_server

from benchmarks.harness.processes import SHUTDOWN_LIMIT_S
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome, RoutingDecision
from lerobot_serve_interfaces.srv import ControlSlot, GetStatus, ReportOutcome

pytestmark = pytest.mark.long

SOUTH = '/south/policy_router'
# seven seconds a chunk: nothing that dies here may be felt within one
LONG = '&chunk=210'
PATIENT = {**BUFFERED, 'request_timeout_s': 1.0}


@pytest.fixture
def server():
    with postgres_server() as running:
        yield running


class Pair:
    """The routers north (of the rig) and south, before one server in each slot."""

    def __init__(self, rig, url: str) -> None:
        self.rig, self.url = rig, url
        self._clients = {}

    def start(self, **parameters: object) -> None:
        for slot in ('a', 'b'):
            self.rig.server(slot, slot, options=LONG)
        given = {'state_url': self.url, **parameters}
        self.rig.router(slot_a=['a'], slot_b=['b'], **given)
        self.rig.wait_for_health('healthy')
        self.start_south(**given)

    def start_south(self, **parameters: object) -> None:
        self.rig.fleet.start(
            'south',
            'policy_router',
            namespace='/south',
            slot_a="['/a/policy_server']",
            slot_b="['/b/policy_server']",
            **{**QUICK, **parameters},
        )
        self.rig.wait(lambda: 'slot b' in self.rig.log('south'), 'south runs')

    def south(self, kind: type, service: str, request: object) -> object:
        if service not in self._clients:
            self._clients[service] = self.rig.node.create_client(kind, f'{SOUTH}/{service}')
        return ask(self.rig.node, self._clients[service], request)

    def split_of_south(self) -> int:
        request = GetParameters.Request(names=['split_percent'])
        (value,) = self.south(GetParameters, 'get_parameters', request).values
        message = ParameterMessage(name='split_percent', value=value)
        return Parameter.from_parameter_msg(message).value

    def wait_for_split(self, percent: int) -> float:
        """Return how long it took until south has this split."""
        begun_s = time.monotonic()
        self.rig.wait(lambda: self.split_of_south() == percent, f'south has {percent} %')
        return time.monotonic() - begun_s


@pytest.fixture
def pair(router_rig, server):
    return Pair(router_rig, server.new_database())


@pytest.mark.slow
def test_what_is_said_to_one_holds_at_the_other_and_after_a_kill(pair):
    rig = pair.rig
    pair.start()
    assert rig.set(split_percent=80) == ''
    print(f'a split reached the other router after {pair.wait_for_split(80):.3f} s')
    request = ControlSlot.Request(command=ControlSlot.Request.DRAIN, slot='b', reason='repair')
    assert pair.south(ControlSlot, 'control_slot', request).success
    rig.wait(lambda: 'repair' in rig.slot('b').text, 'north drains it, too')
    rig.kill('router')
    request = ControlSlot.Request(command=ControlSlot.Request.RESTORE, slot='b', reason='done')
    assert pair.south(ControlSlot, 'control_slot', request).success
    # north again, with another file
    rig.router(slot_a=['a'], slot_b=['b'], state_url=pair.url, split_percent=10)
    rig.wait(lambda: 'slot b' in rig.log('router'), 'north runs')
    rig.wait(lambda: rig.get('split_percent') == 80, 'the split of the state holds')
    rig.watch.last.clear()
    rig.wait(lambda: not rig.slot('b').text, 'slot b is not drained')


@pytest.mark.slow
def test_decisions_of_both_name_the_version_of_the_split(pair, node):
    rig = pair.rig
    pair.start()
    south: list[RoutingDecision] = []
    node.create_subscription(RoutingDecision, f'{SOUTH}/routing', south.append, qos.DECISIONS)
    before, later, after = (rig.episode('a', salt=salt) for salt in ('before', 'later', 'after'))
    robot = rig.robot()
    robot.round_trip(episode_id=before)
    first = rig.wait_for_decision(before)
    assert first.split_version > 0
    assert rig.set(split_percent=80) == ''
    pair.wait_for_split(80)
    other = SmallClient(node, SOUTH, 'other', cameras=())
    other.open()
    # one that north has placed is not a decision of south
    other.round_trip(episode_id=before)
    other.round_trip(episode_id=after)
    rig.wait(lambda: south, 'the decision of south')
    robot.round_trip(episode_id=later)
    assert [each.episode_id for each in south] == [after]
    version = rig.wait_for_decision(later).split_version
    assert version == south[0].split_version > first.split_version
    robot.close()
    other.close()


@pytest.mark.slow
def test_a_robot_whose_router_dies_goes_on_with_the_same_policy(pair, node, tmp_path):
    rig = pair.rig
    pair.start(split_percent=100)
    edge = EdgeRig(node, rig.fleet, tmp_path)
    try:
        edge.start(servers=[ROUTER, SOUTH], **PATIENT)
        edge.wait_for_play()
        first = edge.seen.played[-1]
        assert first.slot == 'a'
        # new episodes are for the other policy now
        assert rig.set(split_percent=0) == ''
        pair.wait_for_split(0)
        rig.kill('router')
        edge.wait(lambda: edge.seen.last.server == SOUTH, 'it asks the other router')
        begin = len(edge.seen.played)
        edge.wait(lambda: len(edge.seen.played) > begin + 300, 'it continues')
        assert {(each.episode_id, each.policy) for each in edge.seen.played} == {
            (first.episode_id, first.policy)
        }
        assert edge.seen.last.stalls == 0
        assert edge.seen.rungs == {EdgeState.RUNG_POLICY}
        assert 'policy_changed' not in edge.seen.drops()
    finally:
        edge.end()


@pytest.mark.slow
def test_routing_goes_on_while_the_state_is_away(pair, server):
    rig = pair.rig
    pair.start()
    robot = rig.robot()
    server.stop()
    rig.wait(lambda: 'cannot be reached' in rig.log('router'), 'it is seen')
    name = rig.episode('a')
    robot.round_trip(episode_id=name)
    assert rig.wait_for_decision(name).slot == 'a'
    rig.wait(lambda: 'cannot be reached' in rig.state.text, 'the state says so')
    server.start()
    rig.wait(lambda: 'is back' in rig.log('router'), 'it is back')
    # the other router takes the outcome of an episode that it learned of then
    outcome = EpisodeOutcome(episode_id=name, outcome=EpisodeOutcome.SUCCESS)

    def is_known() -> bool:
        request = ReportOutcome.Request(outcome=outcome)
        return pair.south(ReportOutcome, 'report_outcome', request).accepted

    rig.wait(is_known, 'the other router knows the episode')
    robot.close()


@pytest.mark.slow
@pytest.mark.parametrize('comes', [True, False])
def test_a_router_that_starts_while_the_state_is_away_waits_for_it(pair, server, comes):
    rig = pair.rig
    rig.server('a', 'prod', options=LONG)
    server.stop()
    process = rig.router(slot_prod=['a'], state_url=pair.url)
    rig.wait(lambda: 'this router waits for it' in rig.log('router'), 'it waits')
    assert rig.log('router').count('this router waits for it') == 1
    request = GetStatus.Request()
    status = ask(rig.node, rig.node.create_client(GetStatus, f'{ROUTER}/get_status'), request)
    assert 'this router waits for it' in status.status.text
    if comes:
        server.start()
        rig.wait_for_health('healthy')
        robot = rig.robot()
        robot.round_trip(episode_id='after')
        robot.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(SHUTDOWN_LIMIT_S) == 0
