# SPDX-License-Identifier: Apache-2.0
"""Whom the robots of the recovery benchmark ask; its processes are those of the demo."""

from __future__ import annotations

from benchmarks.failover import robot, router, SETUPS
from lerobot_serve.demo import process_specs

ALONE, SECOND, ROUTED = SETUPS


def test_a_robot_asks_whom_its_way_to_recover_says(tmp_path):
    asked = {way: robot(way, 'robot_1', 7)[0].parameters['servers'] for way in SETUPS}
    assert asked[ALONE] == "['/a1/policy_server']"
    assert asked[SECOND] == "['/a1/policy_server', '/a2/policy_server']"
    assert asked[ROUTED] == f"['{process_specs.ROUTER}']"
    assert router(ROUTED, tmp_path).parameters['slot_prod'] == asked[SECOND]


def test_nobody_writes_traces_that_nobody_reads():
    parts = robot(ROUTED, 'robot_1', 7)
    assert [part.executable for part in parts] == ['edge_controller', 'sim_robot']
    assert not [name for part in parts for name in part.parameters if 'trace' in name]
