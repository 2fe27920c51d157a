# SPDX-License-Identifier: Apache-2.0
"""Real-time chunking over real topics: what is left to play goes with the next request."""

from __future__ import annotations

import pytest

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import Observation

# two seconds: a busy machine has one for an answer before the robot runs dry
ROWS = 60


@pytest.fixture
def requests(edge_rig) -> list[wire_observation.Observation]:
    """What the edge asks, as somebody who listens hears it."""
    heard: list[wire_observation.Observation] = []
    edge_rig.node.create_subscription(
        Observation,
        '/policy_server/observation',
        lambda raw: heard.append(wire_observation.decode(raw)),
        qos.OBSERVATION_READER,
        raw=True,
    )
    return heard


def prefixes(steering) -> list[int]:
    """Return how many rows the policy got with each request, once there are enough of them."""
    told = [int(event.split()[1]) for event in steering.events('prefix')]
    return told if len(told) >= 4 else []


@pytest.mark.slow
@pytest.mark.parametrize('horizon', [0, 4])
def test_the_next_request_carries_what_is_left_of_the_last_chunk(
    horizon, edge_rig, steering, requests
):
    path = steering.path(chunk=ROWS, rtc=1)
    edge_rig.start_server(policy_kind='steered', policy_path=path)
    # a session that is lost on a busy machine would begin without a prefix
    edge_rig.start(
        rtc=True, execution_horizon=horizon, request_threshold_s=1.0, request_timeout_s=10.0
    )
    told = edge_rig.wait(lambda: prefixes(steering), 'the policy is asked')
    continued = [request for request in list(requests) if request.prefix_policy]
    for request in continued:
        assert request.prefix_policy == edge_rig.seen.last.policy
        rows = len(request.prefix_robot)
        assert rows == len(request.prefix_model)
        # it asks when a second is left
        assert 0 < rows <= (horizon or ROWS // 2)
        assert request.inference_delay_steps <= rows
    # nobody but the policy itself says that it got them
    assert told[0] == 0
    assert all(0 < rows <= (horizon or ROWS // 2) for rows in told[1:])

    def heard() -> set[int]:
        return {len(request.prefix_model) for request in list(requests)}

    # a copy that the listener of this test lost is not one that the policy lost
    edge_rig.wait(lambda: heard() & set(told[1:]), 'a request of the edge is one of the policy')


@pytest.mark.slow
def test_a_policy_that_takes_no_prefix_is_sent_none(edge_rig, steering, requests):
    edge_rig.start_server(policy_kind='steered', policy_path=steering.path(chunk=ROWS))
    edge_rig.start(rtc=True)
    edge_rig.wait(lambda: len(requests) >= 3, 'requests')
    assert all(not request.prefix_policy for request in requests)
    edge_rig.wait_for_play()
