# SPDX-License-Identifier: Apache-2.0
"""What may happen to a hunted edge between two control steps."""

from __future__ import annotations

from benchmarks.hunting.driver import FuzzEvent, FuzzEvents, FuzzTarget
from benchmarks.hunting.edge_model import EdgeModel, SERVERS
from benchmarks.hunting.edge_servers import ABSENT, BEHAVIORS, HEALTHY

MS = 1_000_000
# of a leader arm: within the limits, beyond them, and none at all
POSES = (0.5, 0.5), (-1.8, 0.9), (40.0, -40.0), (float('nan'), 0.0)
# the second is just no silence
STALLS_NS = 200 * MS, 500 * MS, 600 * MS, 3000 * MS, 12000 * MS
# by how much a person moves the robot while its edge stands still
MOVES = 0.0, 0.0, 0.9, -1.4
POLICIES = 'reach@1', 'reach@2'


def _all(mood: str) -> FuzzEvent:
    return FuzzEvent(4, lambda model: [model.set_mood(server, mood) for server in SERVERS])


EVENTS: FuzzEvents = {
    'pause': FuzzEvent(6, EdgeModel.pause),
    'resume': FuzzEvent(8, EdgeModel.resume),
    'reset': FuzzEvent(4, EdgeModel.reset),
    'run': FuzzEvent(6, EdgeModel.run, ((0.0, 1.0, 5.0),)),
    'cancel': FuzzEvent(4, EdgeModel.cancel),
    'judge': FuzzEvent(3, EdgeModel.judge, ((1, 2, 3),)),
    'reset_cage': FuzzEvent(3, EdgeModel.reset_cage),
    'mood': FuzzEvent(14, EdgeModel.set_mood, (SERVERS, BEHAVIORS)),
    'all well': _all(HEALTHY),
    'all gone': _all(ABSENT),
    'swap policy': FuzzEvent(3, EdgeModel.swap_policy, (SERVERS, POLICIES)),
    'sensing': FuzzEvent(5, EdgeModel.set_sensing, ((True, True, False),)),
    'misread': FuzzEvent(4, EdgeModel.misread, ((0.3, 1.5, 6.28, -6.28),)),
    'late step': FuzzEvent(4, EdgeModel.step, ((30 * MS, 150 * MS, 900 * MS),)),
    'take over': FuzzEvent(3, EdgeModel.take_over),
    'hand back': FuzzEvent(12, EdgeModel.hand_back),
    'leader': FuzzEvent(5, EdgeModel.set_leader, (('pose',), POSES)),
    'deadman': FuzzEvent(4, EdgeModel.set_leader, (('is_held',), (True, True, False))),
    'leader sends': FuzzEvent(4, EdgeModel.set_leader, (('is_sending',), (True, True, False))),
    'two leaders': FuzzEvent(2, EdgeModel.set_leader, (('are_two',), (False, False, True))),
    'stall': FuzzEvent(6, EdgeModel.stall, (STALLS_NS, MOVES, (0, 1, 4))),
    'restart': FuzzEvent(1, EdgeModel.restart),
}

TARGET = FuzzTarget(EdgeModel, EVENTS, run_steps=400)
