# SPDX-License-Identifier: Apache-2.0
"""
The hunt: random operators, deaths, restarts and hostile answers against a whole edge and a whole
router core in virtual time; see benchmarks.hunting.
"""

from __future__ import annotations

from dataclasses import asdict
import json
from pathlib import Path

from benchmarks.hunting import edge_events, router_events
from benchmarks.hunting.driver import CampaignResult, Finding, FuzzTarget
from benchmarks.results.report import Case

ABOUT = 'invariants of edge and router under random accidents; violations must be 0'
# 1,000,000 steps of each with the default of 200
STEPS_A_ROUND = 5000
FIRST_SEED = 1
MOST_FINDINGS = 10
PARAMETERS = {'steps_a_round': STEPS_A_ROUND, 'most_findings': MOST_FINDINGS}
TARGETS = {'edge': edge_events.TARGET, 'router': router_events.TARGET}


def measure(
    rounds: int, folder: Path, *, steps: int | None = None, seed: int | None = None
) -> list[Case]:
    """
    Return one case for the edge and one for the router. Main thread.

    `steps` and `seed` take the place of what `rounds` and the default say. What is found is in
    FOLDER/hunt_findings.json, with its script made short.
    """
    steps = rounds * STEPS_A_ROUND if steps is None else steps
    seed = FIRST_SEED if seed is None else seed
    found, cases = {}, []
    for name, subject in TARGETS.items():
        hunted = subject.hunt(steps, seed, findings=MOST_FINDINGS)
        cases.append(case(name, hunted, seed))
        found[name] = [as_json(subject, finding) for finding in hunted.findings]
    (folder / 'hunt_findings.json').write_text(json.dumps(found, indent=2, default=str) + '\n')
    return cases


def case(name: str, hunted: CampaignResult, seed: int) -> Case:
    """Return what was done, and whether nothing was found."""
    counts = {
        'steps': hunted.steps,
        'runs': hunted.runs,
        'steps_a_second': round(hunted.steps / max(hunted.seconds, 1e-9)),
        'violations': len(hunted.findings),
    }
    accidents = {f'accident: {what}': n for what, n in sorted(hunted.happened.items())}
    rules = {f'violated: {f.rule}': 1 for f in hunted.findings}
    goals = {'no invariant is violated': not hunted.findings}
    return Case(name, {'first_seed': seed}, {**counts, **accidents, **rules}, goals=goals)


def as_json(subject: FuzzTarget, finding: Finding) -> dict[str, object]:
    short = subject.shrink(finding)
    return {**asdict(short), 'script': [str(line) for line in short.script]}
