# SPDX-License-Identifier: Apache-2.0
"""What may happen to a hunted router between two steps."""

from __future__ import annotations

from benchmarks.hunting.driver import FuzzEvent, FuzzEvents, FuzzTarget
from benchmarks.hunting.router_model import (
    CANARY_COMMANDS,
    PLANS,
    ROBOTS,
    RouterModel,
    SLOT_COMMANDS,
)
from benchmarks.hunting.router_servers import BEHAVIORS, HALTED, HEALTHY

SERVERS = '/a1', '/a2', '/b1'
SLOTS = 'a', 'b'

EVENTS: FuzzEvents = {
    'mood': FuzzEvent(8, RouterModel.set_mood, (SERVERS, BEHAVIORS)),
    'slot well': FuzzEvent(8, RouterModel.slot_mood, (SLOTS, (HEALTHY,))),
    'slot halted': FuzzEvent(3, RouterModel.slot_mood, (SLOTS, (HALTED,))),
    'load': FuzzEvent(1, RouterModel.load, (SLOTS, (1, 2))),
    'swap': FuzzEvent(1, RouterModel.swap, (SERVERS, (1, 2))),
    'slot word': FuzzEvent(4, RouterModel.slot_word, (tuple(SLOT_COMMANDS), SLOTS)),
    'canary word': FuzzEvent(4, RouterModel.canary_word, (tuple(CANARY_COMMANDS),)),
    'split': FuzzEvent(4, RouterModel.set_split, ((0, 20, 50, 100),)),
    'plan': FuzzEvent(1, RouterModel.set_plan, (tuple(PLANS),)),
    'clock': FuzzEvent(1, RouterModel.step_wall_clock, ((-15.0, 3600.0, -3600.0),)),
    'kill after outcome': FuzzEvent(2, RouterModel.kill_after_outcome, (ROBOTS, (1, 2))),
    'restart': FuzzEvent(3, RouterModel.restart, ((True, True, False),)),
}

TARGET = FuzzTarget(RouterModel, EVENTS, run_steps=1200)
