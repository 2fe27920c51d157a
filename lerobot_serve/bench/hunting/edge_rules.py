"""What may happen to a hunted edge between two control steps."""

from __future__ import annotations

from lerobot_serve.bench.hunting.edge_model import EdgeModel, SERVERS
from lerobot_serve.bench.hunting.edge_servers import AWAY, MOODS, WELL
from lerobot_serve.bench.hunting.run import Rule, Rules, Subject

MS = 1_000_000
POLICIES = 'reach@1', 'reach@2'


def _all(mood: str) -> Rule:
    return Rule(4, lambda model: [model.set_mood(server, mood) for server in SERVERS])


RULES: Rules = {
    'pause': Rule(6, EdgeModel.pause),
    'resume': Rule(8, EdgeModel.resume),
    'reset': Rule(4, EdgeModel.reset),
    'run': Rule(6, EdgeModel.run, ((0.0, 1.0, 5.0),)),
    'cancel': Rule(4, EdgeModel.cancel),
    'judge': Rule(3, EdgeModel.judge, ((1, 2, 3),)),
    'reset_cage': Rule(3, EdgeModel.reset_cage),
    'mood': Rule(14, EdgeModel.set_mood, (SERVERS, MOODS)),
    'all well': _all(WELL),
    'all gone': _all(AWAY),
    'swap policy': Rule(3, EdgeModel.swap_policy, (SERVERS, POLICIES)),
    'sensing': Rule(5, EdgeModel.set_sensing, ((True, True, False),)),
    'misread': Rule(4, EdgeModel.misread, ((0.3, 1.5, 6.28, -6.28),)),
    'late step': Rule(4, EdgeModel.step, ((30 * MS, 150 * MS, 900 * MS),)),
    'restart': Rule(1, EdgeModel.restart),
}

SUBJECT = Subject(EdgeModel, RULES, run_steps=400)
