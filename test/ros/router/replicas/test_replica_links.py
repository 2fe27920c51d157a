# SPDX-License-Identifier: Apache-2.0
"""What a router knows of replicas that no longer run; test/ros/links has the links themselves."""

from __future__ import annotations

import threading

import pytest
from rclpy.serialization import serialize_message

from lerobot_serve.links.link import Presence
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.ros.replica_links import ReplicaLinks
from lerobot_serve_interfaces.msg import ServerStatus

SERVER = '/a/policy_server'


@pytest.mark.parametrize('loss', [Presence.EXPIRED, Presence.GONE])
def test_a_server_that_is_lost_is_silent_until_a_sign_of_life(node, loss):
    parameters = RouterParameters(slot_prod=(SERVER,))
    replicas = ReplicaLinks(node, parameters, None, on_drop=print, stop=threading.Event())
    seen: list[str] = []
    signs = (
        lambda: replicas._on_presence(SERVER, Presence.THERE),
        # it has closed the last session in order
        lambda: replicas._on_presence(SERVER, Presence.CLOSED),
        lambda: replicas._on_status(
            SERVER,
            lambda status: seen.append(status.policy),
            serialize_message(ServerStatus(policy='act@1')),
        ),
    )
    for sign_of_life in signs:
        replicas._on_presence(SERVER, loss)
        assert (replicas.is_silent(SERVER), replicas.is_available(SERVER)) == (True, False)
        sign_of_life()
        assert (replicas.is_silent(SERVER), replicas.is_available(SERVER)) == (False, True)
    assert seen == ['act@1']
    replicas.close()
