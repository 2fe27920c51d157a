# SPDX-License-Identifier: Apache-2.0
"""GR00T's client has sessions at a real router with real servers, also when they die."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from support.gateway.groot_client import GrootClient
from support.nodes.zenoh_links import both_links

NAMES = [f'joint_{number}.pos' for number in range(6)]
# as a robot would: the router logs each refusal
RETRY_S = 0.2
STATE = np.linspace(-1, 1, 6, dtype=np.float32)


@pytest.fixture
def connect():
    """Returns clients of a door, closed after the test."""
    opened = []

    def open_client(rig) -> GrootClient:
        opened.append(GrootClient(rig.addresses['groot']))
        return opened[-1]

    yield open_client
    for each in opened:
        each.close()


def observation(state: np.ndarray, task: str = 'lift the cube') -> dict[str, Any]:
    return {
        'video': {},
        'state': {name: state[at].reshape(1, 1, 1) for at, name in enumerate(NAMES)},
        'language': {'annotation.human.task_description': [[task]]},
    }


def first_row(action: dict[str, np.ndarray]) -> list[float]:
    return action['actions'][0, 0].tolist()


@pytest.mark.slow
@both_links
def test_two_clients_at_once_are_driven_through_a_router(router_rig, doors, connect):
    router_rig.slots(split_percent=50)
    rig = doors('groot')
    clients = [connect(rig), connect(rig)]
    modalities = clients[0].call('get_modality_config')
    assert modalities['state'].modality_keys == NAMES
    for step in range(3):
        for number, client in enumerate(clients):
            state = STATE + number + step
            action, _ = client.get_action(observation(state))
            assert action['actions'].shape == (1, 30, 6)
            assert first_row(action) == pytest.approx(state.tolist(), abs=1e-5)
    router_rig.wait(lambda: router_rig.state.sessions == 2, 'a session for each client')
    assert rig.counters.requests == {('groot', 'ok'): 6}
    predicted = [router_rig.steering(slot).events('predict') for slot in 'ab']
    assert sum(map(len, predicted)) == 6


@pytest.mark.slow
def test_nan_and_a_router_without_servers_are_errors_in_words(router_rig, doors, connect):
    router_rig.slots(split_percent=100, slot_unhealthy_threshold=1000)
    rig = doors('groot', request_timeout_s=2.0)
    client = connect(rig)
    client.get_action(observation(STATE))
    with pytest.raises(RuntimeError, match='NaN'):
        client.get_action(observation(STATE, task='nan'))
    for name in ('a', 'b'):
        router_rig.kill(name)
    router_rig.wait_for_health('unavailable')
    with pytest.raises(RuntimeError, match='Server error'):
        client.get_action(observation(STATE))
    router_rig.server('a', 'a')

    def is_served() -> bool:
        try:
            action, _ = client.get_action(observation(STATE))
        except RuntimeError:
            time.sleep(RETRY_S)
            return False
        return first_row(action) == pytest.approx(STATE.tolist(), abs=1e-5)

    router_rig.wait(is_served, 'the client goes on without a restart')
    assert client.call('ping')['status'] == 'ok'
