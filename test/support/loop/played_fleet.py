# SPDX-License-Identifier: Apache-2.0
"""A router, a store and the verbs, played; and what a conductor did with them."""

from __future__ import annotations

from dataclasses import dataclass, field
import json
from pathlib import Path

from lerobot_serve.router.canary.gate_record import GateRecord, write_record
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.loop.conductor import Conductor
from lerobot_serve.tools.loop.decisions import LoopStep, rollout_facts, RolloutFacts
from lerobot_serve.tools.loop.journal import read_journal
from lerobot_serve.tools.loop.observing import VerbResult
from lerobot_serve.tools.loop.settings import LoopSettings
from lerobot_serve.versions.manifest import Manifest
from support.tools.operator_states import canary_of, replica_of, router_of, slot_of

V1, V2, V3 = 'reach@0000000000000001', 'reach@0000000000000002', 'reach@0000000000000003'


def version(fingerprint: str, parent: str) -> Manifest:
    """Return a version of the store; `choose` reads its names alone."""
    return Manifest(
        format_version=1,
        id=fingerprint,
        policy_kind='builtin',
        created='2026-11-26T18:30:00Z',
        files=(),
        parent=parent,
        **dict.fromkeys(('dataset_sha256', 'note', 'hub'), ''),
        sources=(),
    )


@dataclass
class Fleet:
    """A router, a store and the verbs, played."""

    folder: Path
    phase: str = 'off'
    is_watched: bool = False
    slots: dict[str, str] = field(default_factory=lambda: {'a': V1, 'b': V1})
    versions: list[Manifest] = field(default_factory=list)
    gate_status: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    ran: list[list[str]] = field(default_factory=list)
    is_there: bool = True
    planned: str = ''
    # of faults
    compared_with: str = ''
    writes_records: bool = True
    changes_nothing: bool = False
    verdict: str = ''
    now_s: float = 0.0

    def run(self, words: list[str], limit_s: float) -> VerbResult:
        self.ran.append(words)
        name = ' '.join(words[:2]) if words[0] == 'rollout' else words[0]
        status = self.statuses.get(name, 0)
        if status:
            return VerbResult(status, '', 'lerobot-serve: it failed\n')
        return getattr(self, name.replace(' ', '_'))(words)

    def observe(self) -> RolloutFacts:
        if not self.is_there:
            return RolloutFacts(text='no router')
        phase = CanaryPhase.named(self.phase)
        canary = canary_of(
            phase,
            candidate_policy=self.slots['b'],
            planned_policy=self.planned,
            is_watched=self.is_watched,
        )
        slots = tuple(
            slot_of(
                slot,
                policy=self.slots[slot],
                replicas=(replica_of(f'/{slot}/policy_server', policy=self.slots[slot]),),
            )
            for slot in 'ab'
        )
        return rollout_facts(router_of('/policy_router', slots=slots, canary=canary))

    def gate(self, words: list[str]) -> VerbResult:
        candidate = Path(words[words.index('--candidate') + 1]).name
        verdict = self.verdict or {0: 'passed', 3: 'refused', 4: 'too_few'}[self.gate_status]
        parent = self.compared_with or self.slots['a']
        record = GateRecord(candidate, parent, verdict, 'why', 30, 100, '', '')
        if self.writes_records:
            write_record(self.folder / 'gates', record)
        return VerbResult(self.gate_status, json.dumps({'text': 'why'}), '')

    def rollout_start(self, words: list[str]) -> VerbResult:
        self.slots['b'], self.phase = Path(words[2]).name, 'running'
        self.planned = self.slots['b']
        return VerbResult(0, '', '')

    def rollout_finish(self, words: list[str]) -> VerbResult:
        if not self.changes_nothing:
            self.slots['a'], self.phase = self.slots['b'], 'off'
            self.planned = ''
        return VerbResult(0, '', '')

    def swap(self, words: list[str]) -> VerbResult:
        assert words[1] == '/a/policy_server'
        if not self.changes_nothing:
            self.slots['a'] = words[2]
        return VerbResult(0, '', '')

    def restart(self, slot: str) -> None:
        """Let the server of a slot start again: it serves the policy of its parameters."""
        self.slots[slot] = V1
        if slot == 'b' and self.planned:
            self.phase = 'waiting'


def record_bags(folder: Path, count: int) -> None:
    for number in range(count):
        bag = folder / f'bag_{number}'
        bag.mkdir(parents=True, exist_ok=True)
        (bag / 'metadata.yaml').touch()


def events(settings: LoopSettings) -> list[str]:
    return [entry.event for entry in read_journal(settings.folder)]


def steps(conductor: Conductor, count: int) -> list[LoopStep]:
    return [conductor.take_step() for _ in range(count)]


def finish_a_round(fleet: Fleet, conductor: Conductor, new: str, parent: str) -> None:
    fleet.versions.append(version(new, parent))
    assert steps(conductor, 2) == [LoopStep.GATE, LoopStep.START]
    fleet.phase = 'promoted'
    assert conductor.take_step() is LoopStep.FINISH
