# SPDX-License-Identifier: Apache-2.0
"""
The acts of the demo: what each claims, which it needs before it, and the options of a run. Plain;
any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lerobot_serve.demo.tour.link import DemoLink
from lerobot_serve.parameters import ParameterError

# tour -> act -> its claim, in order; the first act of a tour starts its fleet
SERVING, LEARNING = 'serving', 'learning'
TOURS = {
    SERVING: {
        'serve': 'robots without weights execute chunks',
        'shadow': 'v2 runs in shadow and controls no robot',
        'kill': 'a server is killed and no robot stops',
        'canary': 'v2 is promoted step by step',
        'broken': 'v3 is rolled back automatically',
    },
    LEARNING: {
        'learn': 'a person corrects the robots, and two rounds of learning reach more targets',
        'poison': 'a round of wrong labels is refused before it drives a robot',
        'regress': 'a version that gets worse after its promotion is rolled back',
    },
}
ACT_CLAIMS = {act: claim for claims in TOURS.values() for act, claim in claims.items()}
ACT_REQUIREMENTS = {
    'canary': {'shadow'},
    'broken': {'shadow', 'canary'},
    'poison': {'learn'},
    'regress': {'learn'},
}


def tour_of(names: Iterable[str]) -> str:
    """Return the tour of these acts. Raises ParameterError for an unknown act, or two tours."""
    found: dict[str, str] = {}
    for name in names:
        tour = next((tour for tour, claims in TOURS.items() if name in claims), None)
        if tour is None:
            known = '; '.join(', '.join(claims) for claims in TOURS.values())
            raise ParameterError(f'--acts: unknown act {name!r}; known: {known}')
        found.setdefault(tour, name)
    if len(found) > 1:
        raise ParameterError(
            f'--acts: {" and ".join(found.values())} belong to two fleets; run one after the other'
        )
    return next(iter(found), SERVING)


def ordered_acts(names: Iterable[str]) -> list[str]:
    """Return the named acts with those that they require, in order. Raises ParameterError."""
    given = list(names)
    claims = TOURS[tour_of(given)]
    wanted = {next(iter(claims)), *given}
    wanted = wanted.union(*(ACT_REQUIREMENTS.get(name, ()) for name in wanted))
    return [name for name in claims if name in wanted]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run: acts in order, number of robots, seed, plan of the canary, link."""

    folder: Path
    acts: tuple[str, ...]
    robots: int
    seed: int
    plan: str
    domain: int
    link: DemoLink = field(default_factory=DemoLink)
    has_dashboard: bool = True
    # after the last act, until Ctrl-C
    keeps_running: bool = False

    @property
    def tour(self) -> str:
        return tour_of(self.acts)
