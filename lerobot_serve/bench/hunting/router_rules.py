"""What may happen to a hunted router between two steps."""

from __future__ import annotations

from lerobot_serve.bench.hunting.router_model import (
    CANARY_COMMANDS,
    PLANS,
    RouterModel,
    SLOT_COMMANDS,
)
from lerobot_serve.bench.hunting.router_servers import HALTED, MOODS, WELL
from lerobot_serve.bench.hunting.run import Rule, Rules, Subject

SERVERS = '/a1', '/a2', '/b1'
SLOTS = 'a', 'b'

RULES: Rules = {
    'mood': Rule(8, RouterModel.set_mood, (SERVERS, MOODS)),
    'slot well': Rule(8, RouterModel.slot_mood, (SLOTS, (WELL,))),
    'slot halted': Rule(3, RouterModel.slot_mood, (SLOTS, (HALTED,))),
    'load': Rule(1, RouterModel.load, (SLOTS, (1, 2))),
    'slot word': Rule(4, RouterModel.slot_word, (tuple(SLOT_COMMANDS), SLOTS)),
    'canary word': Rule(4, RouterModel.canary_word, (tuple(CANARY_COMMANDS),)),
    'split': Rule(4, RouterModel.set_split, ((0, 20, 50, 100),)),
    'plan': Rule(1, RouterModel.set_plan, (tuple(PLANS),)),
    'clock': Rule(1, RouterModel.step_wall_clock, ((-15.0, 3600.0, -3600.0),)),
    'restart': Rule(3, RouterModel.restart, ((True, True, False),)),
}

SUBJECT = Subject(RouterModel, RULES, run_steps=1200)
