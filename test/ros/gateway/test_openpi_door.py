# SPDX-License-Identifier: Apache-2.0
"""The unmodified client of openpi has a session at a real router with real servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.gateway.doors_rig import start_with_camera
from support.gateway.peers import packages_of
from support.nodes.zenoh_links import both_links

from lerobot_serve.gateway.callers.caller import NO_CAGE

SERVER = '/a/policy_server'
KEY = 'observation.state'
STATE = np.linspace(-1, 1, 6)


@pytest.fixture
def connect(tmp_path):
    """Returns clients of a door, closed after the test."""
    with packages_of('openpi'):
        from openpi_client.websocket_client_policy import WebsocketClientPolicy

        opened = []

        def open_client(rig):
            opened.append(WebsocketClientPolicy(*rig.host_and_port('openpi')))
            return opened[-1]

        yield open_client
        for each in opened:
            each._ws.close()


@pytest.fixture
def mapping(tmp_path):
    file = tmp_path / 'mapping.yaml'
    file.write_text('cameras: {observation/image: observation.images.front}\n')
    return str(file)


@pytest.mark.slow
@both_links
def test_two_clients_at_once_are_both_driven(router_rig, doors, connect):
    router_rig.slots(split_percent=50)
    rig = doors('openpi')
    clients = [connect(rig), connect(rig)]
    names = [router_rig.episode(slot, owner='127.0.0.1/') for slot in ('a', 'b')]
    with ThreadPoolExecutor(2) as pool:
        for step in range(3):

            def ask(number, step=step):
                observation = {KEY: STATE + number + step, 'session_id': names[number]}
                return clients[number].infer(observation)

            for number, reply in enumerate(pool.map(ask, range(2))):
                assert reply['actions'].shape == (30, 6)
                assert np.allclose(reply['actions'][0], STATE + number + step, atol=1e-5)
                assert reply['lerobot_serve']['slot'] == 'ab'[number]
    assert clients[0].get_server_metadata()['lerobot_serve']['note'] == NO_CAGE
    router_rig.wait(lambda: router_rig.state.sessions == 2, 'a session for each client')
    assert rig.counters.requests == {('openpi', 'ok'): 6}


def test_a_client_that_leaves_ends_its_session(router_rig, doors, connect):
    router_rig.server('a', 'prod', max_sessions=1)
    rig = doors('openpi', server=SERVER)
    first = connect(rig)
    first.infer({KEY: STATE})
    with pytest.raises(Exception, match='429'):
        connect(rig)
    first._ws.close()
    router_rig.wait(lambda: not rig.counters.callers['openpi'], 'its session is closed')
    assert connect(rig).infer({KEY: STATE})['lerobot_serve']['slot'] == 'prod'


def test_pictures_and_refusals(router_rig, doors, connect, mapping):
    start_with_camera(router_rig)
    rig = doors('openpi', server=SERVER, openpi__mapping=mapping)
    client = connect(rig)
    for picture in (np.zeros((48, 64, 3), np.uint8), np.zeros((3, 48, 64), np.uint8)):
        reply = client.infer({KEY: STATE, 'observation/image': picture, 'prompt': 'pick'})
        assert reply['actions'].shape == (30, 6)
    with pytest.raises(RuntimeError, match='front'):
        client.infer({KEY: STATE})
    assert 'actions' in client.infer({KEY: STATE, 'observation/image': picture})
