# SPDX-License-Identifier: Apache-2.0
"""
From the end of a learner's round to the first episode with its version, step by step.

Real processes: a simulated robot, recorder, learner, gate, router and the loop, whose training
changes one bit, so that each version passes its gate. Main thread.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass, field
import importlib.util
from pathlib import Path
import shutil
import time

from benchmarks.harness.nodes import spinning_node
from benchmarks.loop_fleet.fleet import GATE_RECORDINGS, loop_fleet, LoopFleet, PIXELS
from benchmarks.results.report import Case
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.errors import UserError
from lerobot_serve.ros import qos
from lerobot_serve.tools.loop.journal import read_journal
from lerobot_serve_interfaces.msg import ExecutedAction, PolicyVersion

ABOUT = "from the end of a learner's round to the first episode with its version"
ROUNDS_A_VERSION, LEAST_VERSIONS, ROBOTS = 50, 3, 1
EPISODES_A_ROUND = 35
FIRST_LIMIT_S, LIMIT_S = 900.0, 600.0
PARAMETERS = {
    'robots': ROBOTS,
    'cameras': f'2 x {PIXELS}x{PIXELS} raw',
    'episodes_a_round': EPISODES_A_ROUND,
    'gate_recordings': GATE_RECORDINGS,
}
GATED, STARTED, EPISODE = 'round to gate record', 'gate record to start', 'start to episode'
WHOLE = 'round to first episode'


@dataclass(slots=True)
class RoundWitness:
    """
    When each version was announced and first drove a robot, by its digest [s, monotonic]. The
    executor thread deposits; the main thread reads.
    """

    announced: dict[str, float] = field(default_factory=dict)
    drove: dict[str, float] = field(default_factory=dict)

    def on_version(self, message: PolicyVersion) -> None:
        self.announced.setdefault(digest_of(message.id), time.monotonic())

    def on_executed(self, message: ExecutedAction) -> None:
        if message.policy:
            self.drove.setdefault(digest_of(message.policy), time.monotonic())


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the case. Main thread. Raises UserError."""
    if importlib.util.find_spec('lerobot') is None:
        return [Case('not measured', {'why': 'lerobot is not installed, which writes datasets'})]
    home = folder / 'new_version'
    shutil.rmtree(home, ignore_errors=True)
    with (
        witness() as seen,
        loop_fleet(
            home, robots=ROBOTS, episodes_per_round=EPISODES_A_ROUND, filters=('success',)
        ) as fleet,
    ):
        return [follow(fleet, seen, max(LEAST_VERSIONS, rounds // ROUNDS_A_VERSION))]


@contextlib.contextmanager
def witness() -> Iterator[RoundWitness]:
    """Hear versions and commands."""
    seen = RoundWitness()
    with spinning_node('bench_new_version') as node:
        node.create_subscription(PolicyVersion, '/policy_versions', seen.on_version, qos.VERSIONS)
        for number in range(1, ROBOTS + 1):
            topic = f'/robot_{number}/edge_controller/executed_action'
            node.create_subscription(ExecutedAction, topic, seen.on_executed, qos.EXECUTED_ACTION)
        yield seen


def follow(fleet: LoopFleet, seen: RoundWitness, count: int) -> Case:
    """Follow so many versions from their round to their first episode. Raises UserError."""
    steps: dict[str, dict[str, float]] = {}

    def is_done() -> bool:
        note_events(fleet, steps)
        return len(followed(seen, steps)) >= count

    if not fleet.wait(is_done, FIRST_LIMIT_S + count * LIMIT_S):
        raise UserError(
            f'{len(followed(seen, steps))} of {count} versions drove; see {fleet.home}'
        )
    series: dict[str, list[float]] = {name: [] for name in (WHOLE, GATED, STARTED, EPISODE)}
    for digest in followed(seen, steps)[:count]:
        times = [seen.announced[digest], steps[digest]['gate_admitted']]
        times += [steps[digest]['rollout_started'], seen.drove[digest]]
        for name, begin_s, end_s in zip((GATED, STARTED, EPISODE), times, times[1:], strict=False):
            series[name].append(1e3 * (end_s - begin_s))
        series[WHOLE].append(1e3 * (times[-1] - times[0]))
    return Case(
        'a new version reaches a robot',
        counts={'versions': count, 'announced': len(seen.announced)},
        series_ms=series,
    )


def note_events(fleet: LoopFleet, steps: dict[str, dict[str, float]]) -> None:
    """Keep when each event of the journal was first seen."""
    for entry in read_journal(fleet.journal):
        steps.setdefault(digest_of(entry.version), {}).setdefault(entry.event, time.monotonic())


def followed(seen: RoundWitness, steps: dict[str, dict[str, float]]) -> list[str]:
    """Return the versions that came from their round to a robot, in the order of their rounds."""
    return [
        digest
        for digest in seen.announced
        if digest in seen.drove
        and {'gate_admitted', 'rollout_started'} <= steps.get(digest, {}).keys()
    ]
