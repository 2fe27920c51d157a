# SPDX-License-Identifier: Apache-2.0
"""
A robot that is driven by the rules, and what edge and router would write of it.

The records are lists that a test may spoil before they are written: record N of a list is line
N + 2 of its file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
import random
from typing import Any

import numpy as np

from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.description import ActionLimit, LastCommand, Motion
from lerobot_serve.cage.limits_encoding import encode_limits
from lerobot_serve.tools.audit.check import ROLLOUT_CHECKS
from lerobot_serve.tools.audit.engine import AuditResult, CheckResult
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import ExecutedRecord, fields_of, Record, RecordIds
from lerobot_serve.trace.writing.writer import TraceWriter

STEP_S, STEP_NS, MS = 0.02, 20_000_000, 1_000_000
MAX_AGE_S = 1.0
POLICY = {'a': 'reach@aaaa', 'b': 'reach@bbbb'}
LIMITS = (
    ActionLimit('pan', 'pan', Motion.POSITION, -1.0, 1.0, 0.2, max_velocity=8.0),
    ActionLimit('lift', 'lift', Motion.POSITION, -0.5, 0.5, 0.3, max_acceleration=200.0),
    ActionLimit('drive', 'drive', Motion.VELOCITY, -2.0, 2.0, 0.5, max_acceleration=30.0),
)
# the router's machine was started at another time, and its wall clock is a little off
ROUTER_AHEAD_NS, ROUTER_OFF_S = 77_000_000_000, 1.5
WALL_S = 1_750_000_000.0


def of_driving(found: AuditResult) -> list[CheckResult]:
    """Return the results without those of rollouts, which these traces have not."""
    return [result for result in found.results if result.check not in ROLLOUT_CHECKS]


def result_of(found: AuditResult, check: str) -> CheckResult:
    (result,) = [each for each in found.results if each.check == check]
    return result


def accusations(found: AuditResult) -> list[tuple[str, str, int]]:
    """Return check, file and line of all that is shown."""
    return [(v.check, v.file, v.line) for result in found.results for v in result.shown]


def executed(at_ns: int, ids: RecordIds, rung: str = 'policy', **changes: Any) -> ExecutedRecord:
    """Return a command that the cage passed; its control step is its time."""
    usual: Record = {
        'control_step': at_ns,
        'cage_result': 'pass',
        'raw_actions': [0.0],
        'commanded': [0.0],
    }
    return ExecutedRecord(at_ns, *ids.command_fields(), rung=rung, **usual | changes)


@dataclass
class Drive:
    """What was driven; `write` writes it down."""

    edge: list[Record] = field(default_factory=list)
    router: list[Record] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    now_ns: int = 1_000_000_000

    def write(self, folder: Path, **limits: Any) -> tuple[Path, Path]:
        """Return the files of edge and router."""
        edge = write(folder, 'edge', 'edge', self.edge, self.parameters, 0, **limits)
        router = write(folder, 'router', 'router', self.router, {}, ROUTER_AHEAD_NS, **limits)
        return edge, router

    def index(self, node: str, kind: str, number: int = 0, **fields: Any) -> int:
        """Return where the record of a kind (counted from 0) with these fields is."""
        found = [
            index
            for index, record in enumerate(getattr(self, node))
            if record['kind'] == kind and fields.items() <= record.items()
        ]
        return found[number]


def write(
    folder: Path,
    name: str,
    role: str,
    content: list[Record],
    parameters: dict[str, Any],
    ahead_ns: int,
    **limits: Any,
) -> Path:
    off_s = ROUTER_OFF_S if role == 'router' else 0.0
    header = records.header(
        node=f'/{name}',
        role=role,
        version='0',
        wall_s=WALL_S + off_s,
        now_ns=ahead_ns,
        policies=[records.policy(slot, policy) for slot, policy in POLICY.items()],
        parameters=parameters,
    )
    limits = {'limit_bytes': 1 << 24, 'keep_files': 100} | limits
    writer = TraceWriter(
        folder,
        name,
        header,
        log_warning=print,
        clock=lambda: ahead_ns,
        wall=lambda: WALL_S + off_s,
        **limits,
    )
    for number, record in enumerate(content):
        writer.write(record)
        if number % 1000 == 0:
            writer.drain()
    writer.close()
    return folder / f'{name}.jsonl'


def drive(
    seed: int = 0,
    *,
    client: str = 'robot_1',
    episodes: int = 3,
    requests: int = 3,
    rows: int = 4,
    limits: tuple[ActionLimit, ...] = LIMITS,
) -> Drive:
    """Return a clean drive: the same for the same seed."""
    driver = _Driver(random.Random(seed), client, limits)
    for number in range(episodes):
        driver.episode(f'{client}-episode-{number}', number, requests, rows)
    return driver.drive


class _Driver:
    """Goes through episodes: ask, play, sometimes run dry; sometimes a slot fails."""

    def __init__(
        self, chance: random.Random, client: str, limits: tuple[ActionLimit, ...]
    ) -> None:
        self.drive = Drive(
            parameters={
                'client_id': client,
                'max_action_age_s': MAX_AGE_S,
                'interpolation_multiplier': 1,
                'limits': encode_limits(limits, STEP_S).decode(),
            }
        )
        self._chance, self._client, self._limits = chance, client, limits
        self._cage = Cage(limits, (), (), step_s=STEP_S, latch_after_trips=0)
        # where a robot stands that nobody put elsewhere
        self._home = np.clip(0.0, [a.low for a in limits], [a.high for a in limits])
        self._last: LastCommand | None = None
        self._tick = self._seq = 0
        self._epoch = chance.choice([3, 2**32 - 2])

    def episode(self, episode_id: str, number: int, requests: int, rows: int) -> None:
        slot = self._chance.choice('ab')
        self._decide(episode_id, slot, moved=False)
        for asked in range(requests):
            if asked == requests - 1 and self._chance.random() < 0.3:
                slot = 'ba'['ab'.index(slot)]
                self._decide(episode_id, slot, moved=True)
            self._request(episode_id, number, slot, rows)
        if self._chance.random() < 0.5:
            # a reconnection, and a while without commands
            self._epoch, self._seq = (self._epoch + 1) % 2**32, 0
            self._tick += 50
            self._last = None
            self.drive.now_ns += 50 * STEP_NS
        ended = records.IncidentRecord(self.drive.now_ns, name='episode_ended')
        self.drive.edge.append(fields_of(ended))

    def _decide(self, episode_id: str, slot: str, *, moved: bool) -> None:
        ids = RecordIds(self._client, self._epoch, self._seq + 1, episode_id)
        decided = records.PlacementRecord(
            self.drive.now_ns + ROUTER_AHEAD_NS,
            *ids.fields(),
            slot=slot,
            bucket=7,
            split_percent=50,
            moved=moved,
            policy=POLICY[slot],
        )
        self.drive.router.append(fields_of(decided))

    def _request(self, episode_id: str, number: int, slot: str, rows: int) -> None:
        drive, chance = self.drive, self._chance
        self._seq += 1
        ids = RecordIds(self._client, self._epoch, self._seq, episode_id)
        captured_ns = drive.now_ns
        round_trip_ms = chance.uniform(1.0, 60.0)
        drive.now_ns += int(round_trip_ms * MS) + chance.randrange(MS)
        is_answered = chance.random() < 0.9
        for content, ahead_ns in ((drive.edge, 0), (drive.router, ROUTER_AHEAD_NS)):
            made = records.RequestRecord(
                drive.now_ns + ahead_ns,
                *ids.fields(),
                status='ok' if is_answered else 'too_late',
                episode=number,
                routing=records.routing(slot, routing_key=episode_id),
                policy=POLICY[slot],
                round_trip_ms=round_trip_ms,
                inference_ms=round_trip_ms / 2,
                queue_wait_ms=0.1,
            )
            if chance.random() < 0.5:
                made.prefix_policy, made.prefix_ignored = POLICY['a'], slot != 'a'
            content.append(fields_of(made))
        if is_answered:
            self._play(ids, slot, rows, captured_ns)
        if chance.random() < 0.3:
            self._fall(ids)

    def _play(self, ids: RecordIds, slot: str, rows: int, captured_ns: int) -> None:
        for row in range(self._chance.randrange(2), rows):
            age_s = (self.drive.now_ns - captured_ns) / 1e9
            more = {'chunk_row': row, 'age_s': age_s, 'slot': slot, 'policy': POLICY[slot]}
            self._command(self._wanted(), ids, 'policy', **more)

    def _fall(self, ids: RecordIds) -> None:
        for rung in ('ramp', 'hold'):
            wanted = self._last.position if self._last else self._wanted()
            self._command(
                wanted, RecordIds(ids.client_id), rung, reason=f'{rung}: nothing_to_play'
            )

    def _wanted(self) -> np.ndarray:
        far = 1.0 if self._chance.random() < 0.2 else 0.05
        start = self._last.position if self._last else self._home
        wander = [self._chance.uniform(-far, far) for _ in self._limits]
        return (start + wander).astype(np.float32)

    def _command(self, wanted: np.ndarray, ids: RecordIds, rung: str, **more: Any) -> None:
        here = self._last.position if self._last else self._home
        last = self._last or self._cage.limits.start(here)
        judgement = self._cage.judge(wanted, last, measured=here, state=None)
        self._last = last.after(judgement.command, STEP_S)
        self._tick += 1
        self.drive.now_ns += STEP_NS
        executed = records.ExecutedRecord(
            self.drive.now_ns,
            *ids.command_fields(),
            control_step=self._tick,
            cage_result=records.enum_name(judgement.verdict),
            rung=rung,
            raw_actions=records.copied(wanted),
            commanded=records.copied(judgement.command),
            **{'reason': judgement.reason} | more,
        )
        self.drive.edge.append(fields_of(executed))
