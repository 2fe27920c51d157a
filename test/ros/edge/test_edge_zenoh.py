# SPDX-License-Identifier: Apache-2.0
"""An edge and its servers over Zenoh."""

from __future__ import annotations

import pytest

from lerobot_serve.contract.names import KEY_ROOT
from lerobot_serve.ros import qos
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve_interfaces.msg import ServerStatus


@pytest.fixture
def link() -> str:
    """The test sets the link itself."""
    return 'ros'


def test_a_killed_robot_is_gone_though_others_listen(edge_rig, endpoint):
    """Who listens to everything, a recorder for one, keeps no session open."""
    statuses: list[ServerStatus] = []
    edge_rig.node.create_subscription(
        ServerStatus, '/policy_server/status', statuses.append, qos.STATE
    )
    edge_rig.start_server(
        zenoh_listen=[endpoint], session_grace_s=0.5, session_idle_s=600.0, status_period_s=0.05
    )
    edge = edge_rig.start(link='zenoh', zenoh_connect=[endpoint])
    edge_rig.wait_for_play()
    edge_rig.wait(lambda: statuses[-1].active_sessions == 1, 'the session is told')
    observer = ZenohLink(ZenohSettings(connect=(endpoint,), observes=True))
    heard: list[str] = []
    try:
        observer.subscribe(f'{KEY_ROOT}/default/**', lambda key, _: heard.append(key))
        edge_rig.wait(lambda: any('action_chunk' in key for key in heard), 'a chunk is heard')
        edge_rig.kill(edge)
        edge_rig.wait(lambda: statuses[-1].active_sessions == 0, 'the session is closed')
    finally:
        observer.close()
