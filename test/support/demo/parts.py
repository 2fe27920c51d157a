# SPDX-License-Identifier: Apache-2.0
"""Figures and a view for the tests of what the demo shows."""

from __future__ import annotations

from collections.abc import Sequence

from lerobot_serve.demo.results.report import DemoRun
from lerobot_serve.demo.tour.link import TypedCommand

ACTS = {
    'serve': {
        'shown': True,
        'robots': 3,
        'link': 'zenoh',
        'robots_with_torch': [],
        'first_motion_s': 5.5,
        'all_move_s': 9.5,
    },
    'shadow': {'shown': True, 'samples': 40, 'episodes': 6, 'divergence_rad': 0.0123},
    'kill': {
        'shown': True,
        'robots_stalled': 0,
        'missed_after_s': 1.25,
        'back_after_s': 5.4,
        'at_s': 105.0,
        'until_s': 109.0,
    },
    'canary': {
        'shown': True,
        'ends': 'promoted',
        'took_s': 60.0,
        'steps': [{'share_percent': 5, 'after_s': 0.0}, {'share_percent': 100, 'after_s': 60.0}],
    },
    'broken': {
        'shown': False,
        'why': '<rolled back>',
        'episodes_with_v3': 2,
        'episodes_with_v3_a_second_later': 1,
        'commands_changed_by_the_cage': 71,
    },
}
LEARNED = {
    'learn': {
        'shown': True,
        'took_s': 401.4,
        'rounds': [{'round': n, 'promoted_at_s': 10.0 * n} for n in (1, 2)],
    },
    'poison': {
        'shown': True,
        'verdict': 'refused',
        'episodes': 0,
        'why': 'velocity: 2.1 spreads apart',
    },
    'regress': {
        'shown': True,
        'why': 'rolled back: it succeeds less often',
        'rolled_back_after_s': 9.6,
        'episodes_with_it': 21,
        'episodes_with_it_a_second_later': 0,
    },
}
PROOF = {'violations': 0, 'traces': 7, 'judged': 900, 'without_end': 1}


class FakeWatch:
    """The view of a rollout that changes as given."""

    def __init__(self, changes: Sequence[str] = ()) -> None:
        self.decisions: list[str] = []
        self._coming = list(changes)

    def poll(self, _: float) -> list[str]:
        found, self._coming = self._coming, []
        self.decisions += found
        return found

    def text(self, *_: object) -> str:
        head = '/policy_router: running, step 1 of 3\n\nchanges since this began:'
        return '\n'.join([head, *self.decisions])


def a_run(*, shown: bool = False, error: str = '') -> DemoRun:
    """Return a run; `shown`: each act proved its claim."""
    acts = {name: {**found, 'shown': shown or found['shown']} for name, found in ACTS.items()}
    command = TypedCommand(104.0, 'kill', 'kill -9 7', 'why <7>', ['gone <now>'], 0)
    return DemoRun(acts, [command], {'fleet': 0}, 61.0, error)
