# SPDX-License-Identifier: Apache-2.0
"""A robot and a policy of different units: converted where declared, otherwise stopped."""

from __future__ import annotations

import numpy as np
import pytest
from support.nodes.edge_rig import EDGE
from support.nodes.fake_server import FakeServer
from support.nodes.played_robot import HOME, JOINTS

STEERED = {'policy_kind': 'steered'}
DEGREES = ', '.join(f'{joint}.pos: {{robot: rad, policy: deg}}' for joint in JOINTS)


def stay(request: object) -> np.ndarray:
    """Return a chunk that stays where the robot is, in whatever unit it says so."""
    return np.tile(request.state[-1], (60, 1))


def test_a_policy_in_degrees_drives_a_robot_in_radians_where_the_file_says_so(edge_rig):
    server = FakeServer(edge_rig.node, '/policy_server', EDGE, stay, chunk_size=60)
    edge_rig.robot += f'units: {{{DEGREES}}}\n'
    edge_rig.start(rtc=True)
    edge_rig.wait_for_play()
    assert server.received[0].state[0] == pytest.approx(np.rad2deg(HOME))
    assert list(edge_rig.body.commands[-1].points[0].positions) == pytest.approx(HOME)
    assert edge_rig.seen.last.cage_trips == 0


def test_a_policy_trained_in_another_unit_is_refused_before_anything_moves(edge_rig, steering):
    path = steering.path(joint='joint', range=115)
    edge_rig.start_server(**STEERED, policy_path=path)
    edge_rig.start()
    edge_rig.wait(lambda: 'far beyond the limits' in edge_rig.seen.last.reason, 'it is refused')
    assert 'this looks like deg' in edge_rig.seen.last.reason
    edge_rig.wait_for_ticks()
    assert not edge_rig.body.commands
    assert not edge_rig.seen.executed
