# SPDX-License-Identifier: Apache-2.0
"""Two fleet files share no state of a router, nor of a robot."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.tools.fleet.plan import FleetProcess, Stage, with_own_state

HOME = Path('/home/kim/.ros')


def plan(**router: object) -> list[FleetProcess]:
    return [
        FleetProcess('v1', Stage.SERVER, 'policy_server', 'v1', {}),
        FleetProcess('router', Stage.ROUTER, 'policy_router', '', router),
        FleetProcess('left_arm', Stage.ROBOT, 'edge_controller', 'left_arm', {}),
    ]


def folder_of(fleet: str, **router: object) -> str:
    server, own, robot = with_own_state(plan(**router), Path(fleet), HOME)
    assert server.values == {}
    name = Path(robot.values['state_folder']).relative_to(HOME / 'lerobot_serve' / 'fleets')
    assert name.parts[1:] == ('robots', 'left_arm')
    return own.values['state_folder']


def test_each_file_has_a_folder_and_keeps_it():
    first = folder_of('/a/fleet.yaml')
    assert first == folder_of('/a/fleet.yaml')
    assert first.startswith('/home/kim/.ros/lerobot_serve/fleets/fleet-')
    assert first not in {folder_of('/b/fleet.yaml'), folder_of('/a/other.yaml')}


def test_a_folder_that_the_file_names_stays():
    assert folder_of('/a/fleet.yaml', state_folder='/var/lib/x') == '/var/lib/x'
