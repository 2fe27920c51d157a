# SPDX-License-Identifier: Apache-2.0
"""LeRobot's own robot clients through the gateway's process, at a router with a canary."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.gateway.doors_rig import start_process
from support.gateway.robot_clients import RobotClients
from support.paths import PLUGINS

from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve_interfaces.msg import CanaryState

pytest.importorskip('lerobot')
pytestmark = pytest.mark.slow
# each chunk leads a robot this far from where it is
OFFSET = 0.05
BEGINS = {'one': 0.0, 'two': 100.0, 'nan': 200.0}
# the policy that fails for one robot stays in use for the others
ROUTER = {
    'canary.plan': "['50:1000:0', '100']",
    'canary.minimum_step_s': 0.0,
    'slot_unhealthy_threshold': 1000,
    'canary.max_failed_percent': 100.0,
    'canary.max_latency_ratio': 1000.0,
}


class Recorded:
    """Clients of LeRobot, and what their robots were commanded."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self._clients = RobotClients(folder, PLUGINS / 'lerobot_robot_recorded')
        for name in BEGINS:
            self._clients.start(self._configuration(name, address))

    def _configuration(self, name: str, address: str) -> dict[str, Any]:
        robot = {'type': 'recorded', 'record': str(self.folder / name), 'id': name}
        return {
            'robot': robot | {'begin_at': BEGINS[name]},
            'task': name,
            'server_address': address,
            'policy_type': 'act',
            'pretrained_name_or_path': 'user/steered',
            'actions_per_chunk': 20,
            'chunk_size_threshold': 0.5,
            'fps': 60,
        }

    def positions(self, name: str) -> list[float]:
        """Return the first joint in each command, from where the robot began."""
        file = self.folder / name
        lines = file.read_text().splitlines() if file.exists() else []
        return [float(line.split()[0]) - BEGINS[name] for line in lines if line.count(' ') == 5]

    def log(self, name: str) -> str:
        return self._clients.log(list(BEGINS).index(name))

    def end(self) -> None:
        self._clients.end()


@pytest.fixture
def clients(tmp_path):
    started = []

    def start(address: str) -> Recorded:
        started.append(Recorded(tmp_path, address))
        return started[-1]

    yield start
    for each in started:
        each.end()


def start_servers(rig) -> None:
    for slot in ('a', 'b'):
        rig.server(slot, slot, options=f'&offset={OFFSET}')


def test_two_robot_clients_at_once_are_driven_and_nan_moves_nothing(router_rig, clients):
    start_servers(router_rig)
    router_rig.router(slot_a=['a'], slot_b=['b'], **ROUTER)
    robots = clients(start_process(router_rig, 'lerobot'))
    router_rig.wait_for_health('healthy')
    router_rig.wait(lambda: router_rig.get('split_percent') == 50, 'v2 is in canary')

    def reach(target: float) -> None:
        for name in ('one', 'two'):
            router_rig.wait(
                lambda name=name: robots.positions(name)[-1:] > [target],
                f'robot {name} at {target}',
                90.0,
            )

    reach(5 * OFFSET)
    for name in ('one', 'two'):
        moved = robots.positions(name)
        steps = [after - before for before, after in pairwise(moved)]
        # chunks of another robot would be 100 away; LeRobot itself blends two of its own
        assert max(map(abs, steps)) <= 2 * OFFSET + 1e-6
    assert router_rig.watch.last[CanaryState].state == CanaryState.RUNNING
    assert router_rig.state.sessions == 3
    router_rig.wait(lambda: 'NaN' in robots.log('nan'), 'the third client is told why')
    assert robots.positions('nan') == []
    assert router_rig.log('gateway').count(NO_CAGE) >= 3

    # its servers are killed: the robots run dry, and go on when others have come
    for name in ('a', 'b'):
        router_rig.kill(name)
    router_rig.wait_for_health('unavailable')
    before = len(robots.positions('one')), len(robots.positions('two'))
    here = max(robots.positions('one')[-1], robots.positions('two')[-1])
    start_servers(router_rig)
    reach(here + 5 * OFFSET)
    assert len(robots.positions('one')) > before[0]
    assert len(robots.positions('two')) > before[1]
    assert robots.positions('nan') == []
    assert 'Traceback' not in router_rig.log('gateway')
