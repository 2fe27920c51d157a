# SPDX-License-Identifier: Apache-2.0
"""A policy with hidden state: each robot's is its own, and its loss is told."""

from __future__ import annotations

from msgspec.structs import replace
import numpy as np
import pytest
from support.nodes.server_rig import ServerRig

from lerobot_serve.contract.records import ResetEpisodeRequest
from lerobot_serve.contract.schema import Flag, StateClass, Status

RECURRENT = {'policy_kind': 'recurrent', 'policy_path': 'joints=6,chunk=5,cameras=,fps=30'}
EPISODES = {
    'robot_0': [np.full((1, 6), value, np.float32) for value in (0.0, 1.0, 2.0, 4.0)],
    'robot_1': [np.full((1, 6), value, np.float32) for value in (9.0, -5.0, 3.0, 0.5)],
}


def ask(client, state: np.ndarray, episode: int = 0, start: bool = False):
    """Return the answer to one observation of an episode."""
    flags = Flag.EPISODE_START if start else Flag.NONE
    chunk = client.round_trip(state=state, flags=flags, episode=episode)
    assert (chunk.status, chunk.status_text) == (Status.OK, '')
    return chunk


@pytest.fixture
def alone(node, rig):
    """Two servers of their own, for one robot each."""
    rigs = []
    for name in EPISODES:
        rigs.append(ServerRig(node, rig.fleet, rig.steering, f'/{name}_alone/policy_server'))
        rigs[-1].start(**RECURRENT)
    yield rigs
    for one in rigs:
        one.end()


def test_interleaved_robots_get_what_they_would_get_alone(rig, alone):
    rig.start(**RECURRENT)
    assert rig.status().state_class == StateClass.RECURRENT
    together = [rig.client(name) for name in EPISODES]
    apart = [own.client(f'{name}_alone') for own, name in zip(alone, EPISODES, strict=True)]
    for step in range(4):
        for shared, single, states in zip(together, apart, EPISODES.values(), strict=True):
            one = ask(shared, states[step], start=step == 0)
            other = ask(single, states[step], start=step == 0)
            assert one.robot.tobytes() == other.robot.tobytes()
            assert one.header.flags == other.header.flags == Flag.NONE
    # and it is a state that shows
    assert not np.array_equal(one.robot[-1], states[-1][0])


def test_a_new_episode_begins_without_the_old_ones_state(rig):
    rig.start(**RECURRENT)
    client = rig.client()
    states = EPISODES['robot_0']
    first = [ask(client, state, start=i == 0).robot for i, state in enumerate(states)]
    request = ResetEpisodeRequest('tester', 1, 1)
    assert client.reset(request).acknowledged
    second = [ask(client, state, 1, start=i == 0).robot for i, state in enumerate(states)]
    assert np.array_equal(first, second)
    assert not np.array_equal(first[-1], ask(client, states[-1], 1).robot)
    assert rig.drops() == {}


def test_a_server_that_was_killed_has_lost_the_state_and_says_so_once(rig):
    process = rig.start(**RECURRENT)
    client = rig.client()
    states = EPISODES['robot_0']
    ask(client, states[0], start=True)
    process.kill()
    assert process.wait(10) == -9
    rig.start(**RECURRENT)
    client.ask = replace(client.ask, session_epoch=2)
    client.open()
    lost = ask(client, states[1])
    assert lost.header.flags == Flag.STATE_LOST
    assert ask(client, states[2]).header.flags == Flag.NONE
    assert rig.drops() == {'state_lost': 1}


def test_who_is_forgotten_for_want_of_room_is_told(rig):
    rig.start(**RECURRENT, max_recurrent_states=1)
    first, second = rig.clients(2)
    state = EPISODES['robot_0'][0]
    assert ask(first, state, start=True).header.flags == Flag.NONE
    assert ask(first, state).header.flags == Flag.NONE
    assert ask(second, state, start=True).header.flags == Flag.NONE
    assert ask(first, state).header.flags == Flag.STATE_LOST
