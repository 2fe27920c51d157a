# SPDX-License-Identifier: Apache-2.0
"""
A Zenoh router between a robot and its server is killed and started again: the robot is driven
again, nothing is restarted beside it, and no request or chunk is lost without a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.network.ports import free_port
from support.nodes.edge_rig import SHORT
from support.nodes.zenoh_links import free_endpoint
from support.paths import module_environment
from support.zenoh.access_rig import Keys, SITE

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import MsgType
from lerobot_serve.ros import qos
from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import Traffic, ZenohSettings
from lerobot_serve_interfaces.msg import EdgeState, ServerStatus

HUB = """
import pathlib, sys
from support.zenoh.access_rig import opened_hub
hub = opened_hub(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
print('listening', flush=True)
sys.stdin.read()
"""
# counts sessions, not requests
SESSION_ENDS = 'client_gone'


@pytest.fixture
def start_hub() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a Zenoh router in a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            end_with_parent([sys.executable, '-c', HUB, *map(str, arguments)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=module_environment(),
        )
        started.append(process)
        assert process.stdout and process.stdout.readline() == b'listening\n'
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_zenoh_router_that_is_killed_comes_back(edge_rig, tmp_path, start_hub):
    keys, port, trace = Keys(tmp_path / 'keys'), free_port(), tmp_path / 'trace'
    robot, server = keys.add('robot', 'robot_1'), keys.add('server', '/policy_server', direct=True)
    hub_folder = keys.add('hub', 'hub')
    more = {'zenoh_connect': [f'tls/localhost:{port}'], 'zenoh_site': SITE, **SHORT}
    statuses: list[ServerStatus] = []
    edge_rig.node.create_subscription(
        ServerStatus, '/policy_server/status', statuses.append, qos.STATE
    )
    hub = start_hub(hub_folder, port)
    serving = edge_rig.start_server(zenoh_keys=server, status_period_s=0.05, **more)
    del more['policy_path']
    edge = edge_rig.start(
        link='zenoh', client_id='robot_1', zenoh_keys=robot, trace_folder=trace, **more
    )
    edge_rig.wait_for_play(30)
    for _ in range(2):
        # a request is on its way when the Zenoh router dies
        serving.send_signal(signal.SIGSTOP)
        # the state of an edge is older than it: one that was replied to may be counted later
        edge_rig.wait_for_ticks(5)
        sent = edge_rig.seen.last.requests_sent
        edge_rig.wait(lambda s=sent: edge_rig.seen.last.requests_sent > s, 'a request is sent')
        edge_rig.kill(hub)
        serving.send_signal(signal.SIGCONT)
        edge_rig.wait_for_state(EdgeState.STALLED, EdgeState.RECONNECTING)
        hub = start_hub(hub_folder, port)
        edge_rig.wait_for_state(EdgeState.STREAMING)
        edge_rig.wait_for_play(10)
    assert [each.poll() for each in (serving, edge)] == [None, None]
    edge_rig.stop(edge)
    last, (file,) = edge_rig.seen.last, trace.glob('*.jsonl')
    ends = [each for _, each in read_records(file) if each['kind'] == 'request']
    statuses_of_ends = Counter(each['status'] for each in ends)
    # each request has one end, in the trace: a chunk, or the reason of its loss
    assert len({(each['session_epoch'], each['seq']) for each in ends}) == len(ends)
    assert len(ends) >= last.requests_sent
    assert statuses_of_ends['ok'] >= last.chunks_accepted
    lost = [each for each in ends if each['status'] != 'ok']
    assert len(lost) >= 2 and all(each['reason'] for each in lost), lost
    # and each that the server got has its chunk, or a count
    edge_rig.wait(lambda: statuses[-1].active_sessions == 0, 'the session is closed')
    status = statuses[-1]
    dropped = {each.reason: each.count for each in status.dropped if each.reason != SESSION_ENDS}
    # a chunk that waited for the link may be sent and be counted as lost, too
    maybe_sent = dropped.pop('link_full', 0)
    counted = status.chunks + status.superseded + sum(dropped.values())
    assert counted <= status.requests <= counted + maybe_sent, status


# a peer that sends as fast as it can, beside a robot that is driven: real processes


OBSERVATIONS, CALLS, GROWTH_MB = 3000, 2000, 50.0


class Replies:
    """Counts replies and refusals of calls; threads of Zenoh."""

    def __init__(self) -> None:
        self._lock, self.answered, self.refused = threading.Lock(), 0, 0

    def on_reply(self, _: bytes) -> None:
        with self._lock:
            self.answered += 1

    def on_refusal(self, text: str) -> None:
        assert 'too many calls at once' in text
        with self._lock:
            self.refused += 1

    @property
    def all(self) -> int:
        return self.answered + self.refused


@pytest.mark.slow
def test_what_floods_is_answered_or_counted_and_the_robot_is_driven_on(edge_rig):
    endpoint, statuses, replies = free_endpoint(), [], Replies()
    edge_rig.node.create_subscription(
        ServerStatus, '/policy_server/status', statuses.append, qos.STATE
    )
    edge_rig.start_server(zenoh_listen=[endpoint], status_period_s=0.05)
    edge_rig.start(link='zenoh', zenoh_connect=[endpoint])
    edge_rig.wait_for_play(30)
    edge_rig.wait(lambda: statuses and statuses[-1].memory_mb > 0, 'a status')
    before, accepted = statuses[-1], edge_rig.seen.last.chunks_accepted
    own = ServerKeys('default', '/policy_server').client(Role.ROBOT, 'flood')
    header = Header(1, 2, 3, 0, 1, MsgType.OBSERVATION)
    stranger = wire_observation.encode(
        Observation(header, 'robot_1', 'episode', np.zeros((1, 6), np.float32))
    )
    peer = ZenohLink(ZenohSettings(connect=(endpoint,)))

    def counted(reason: str) -> int:
        return sum(each.count for each in statuses[-1].dropped if each.reason == reason)

    try:
        edge_rig.wait(peer.is_connected, 'the peer is connected')
        # its queue is a link's: it waits for its uplink, so that nothing is lost before
        flood = peer.publisher(own.observation, Traffic.OBSERVATION)
        edge_rig.wait(lambda: flood.matching_status.matching, 'the server listens')
        for number in range(OBSERVATIONS):
            flood.put(b'malformed')
            flood.put(stranger)
            if number < CALLS:
                peer.call_later(
                    own.service('get_status'),
                    b'',
                    replies.on_reply,
                    replies.on_refusal,
                    timeout_s=60.0,
                    # not lost where the link is full
                    traffic=Traffic.OBSERVATION,
                )
        edge_rig.wait(lambda: replies.all == CALLS, 'each call has a reply')
        edge_rig.wait(lambda: counted('wrong_client') == OBSERVATIONS, 'each is counted')
        assert counted('encapsulation') == OBSERVATIONS, statuses[-1].dropped
        assert counted('too_many_calls') == replies.refused
        assert replies.answered
    finally:
        peer.close()
    edge_rig.wait(lambda: edge_rig.seen.last.chunks_accepted > accepted, 'the robot is driven on')
    assert statuses[-1].memory_mb - before.memory_mb < GROWTH_MB
