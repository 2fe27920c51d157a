# SPDX-License-Identifier: Apache-2.0
"""What a router's clients know of servers that no longer run."""

from __future__ import annotations

import queue
import signal
import threading

import numpy as np
import pytest
from support.processes.stopped_process import halt

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import MsgType
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.ros.replica_links import ReplicaLinks

LIMIT_S = 20.0


class Replicas(ReplicaLinks):
    """Clients of one server; answers wait for the test."""

    def __init__(self, node, server: str, stop: threading.Event) -> None:
        # on the local path the reply topic shows no sign of life
        parameters = RouterParameters(slot_prod=(server,), local_path=False)
        super().__init__(node, parameters, None, on_drop=lambda _: None, stop=stop)
        self.answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.listen(lambda server, raw: self.answers.put(raw), lambda server, status: None)


@pytest.fixture
def replicas(node, rig):
    stop = threading.Event()
    made = Replicas(node, rig.name, stop)
    thread = threading.Thread(target=made.run, args=(stop,))
    thread.start()
    yield made
    stop.set()
    made.wake()
    thread.join()
    made.close()


def request(name: str) -> bytes:
    header = Header(1, 0, 1, 0, 1, int(MsgType.OBSERVATION))
    state = np.zeros((1, 6), np.float32)
    return wire_observation.encode(Observation(header, name, 'episode-1', state))


def test_a_server_that_is_stopped_is_silent_until_it_goes_on(rig, replicas):
    server = rig.start(policy_kind='steered')
    client = replicas.clients[rig.name]
    ask = client.session_request_for(rig.stranger('robot'))
    assert client.open(ask, LIMIT_S).accepted
    assert client.wait_until_matched(LIMIT_S)
    # its lease begins with the first sign of life
    client.send(request('robot'))
    assert replicas.answers.get(timeout=LIMIT_S)
    assert (replicas.is_available(rig.name), replicas.is_silent(rig.name)) == (True, False)
    halt(server)
    try:
        rig.wait(lambda: replicas.is_silent(rig.name), 'its lease has run out', LIMIT_S)
        assert not replicas.is_available(rig.name)
    finally:
        server.send_signal(signal.SIGCONT)
    rig.wait(lambda: not replicas.is_silent(rig.name), 'it is heard again', LIMIT_S)
    rig.wait(lambda: replicas.is_available(rig.name), 'its services are there', LIMIT_S)
    # who has no session there any more is not missed
    assert client.close(ask, LIMIT_S).closed
    assert not replicas.is_silent(rig.name)
