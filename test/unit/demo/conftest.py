# SPDX-License-Identifier: Apache-2.0
"""A scoreboard and records of a run that never was."""

from __future__ import annotations

import pytest
from support.tools.operator_states import robot_of

from lerobot_serve.contract.records import DropCount
from lerobot_serve.demo.results.run_records import PlayedAction, RunRecords
from lerobot_serve.demo.results.scoreboard import EndedEpisode, Scoreboard


@pytest.fixture
def board() -> Scoreboard:
    seen = Scoreboard(['robot_1', 'robot_2'])
    seen.ended_episodes = [
        EndedEpisode(100.0 + i, 'robot_1', ('v1@1', 'v2@2')[i % 2], i % 4 != 0, 1.5)
        for i in range(40)
    ]
    seen.placements = [(100.0, 'v1@1'), (101.0, 'v2@2'), (105.0, 'v2@2')]
    for name, drops in (('robot_1', {'stale': 2}), ('robot_2', {'stale': 1, 'late': 1})):
        dropped = [DropCount(*each) for each in drops.items()]
        seen.robots[name] = robot_of(f'/{name}/edge_controller', dropped=dropped)
    seen.add_event(103.0, 'a1 is killed <hard>', 'a1 killed', 'kill')
    return seen


@pytest.fixture
def records() -> RunRecords:
    actions = [PlayedAction(t, 'e1', 0.1) for t in (105.0, 105.041, 105.06)]
    return RunRecords(
        actions={'robot_1': [*actions, PlayedAction(106.1314, 'e2', 0.25)]},
        round_trips_ms={'v1@1': [(101.0, 9.0), (102.0, 11.0)]},
        shares=[(100.0, 0.0), (110.0, 5.0)],
    )
