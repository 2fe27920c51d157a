# SPDX-License-Identifier: Apache-2.0
"""
Checks that a policy drives in slot b only after its gate has admitted it. One thread.

A router that starts while a policy is on trial says so with its first poll, which may come after
the first placement.
"""

from __future__ import annotations

from lerobot_serve.tools.audit.checks.check import RunCheck
from lerobot_serve.tools.traces.trace_run import LinePosition, TraceRun
from lerobot_serve.trace.format.records import GateRecord, PlacementRecord, RequestRecord

CANDIDATE_SLOT = 'b'
# results with which a policy may drive, and the one that also covers what came before it
ADMITTING = ('passed', 'overridden', 'same_files')
ADMITTED_BEFORE = 'admitted_before'
NO_GATE, NONE_DROVE = 'no router has a gate_folder', 'no policy drove in slot b'
PARTIAL = 'the oldest parts of the trace, which may name the gate, were removed'
Driven = PlacementRecord | RequestRecord


class GateAdmissionCheck(RunCheck[GateRecord | Driven]):
    """See the module."""

    CHECKS = ('gated',)
    RECORDS = (GateRecord, PlacementRecord, RequestRecord)
    ROLES = ('router',)
    NOT_JUDGED_REASON = NO_GATE

    def __init__(self, run: TraceRun, *, show: int) -> None:
        super().__init__(run, show=show)
        self._admitted: set[str] = set()
        # digest -> policy and the lines that no gate covers yet
        self._open: dict[str, tuple[str, list[LinePosition]]] = {}
        self._counts: dict[str, int] = {}
        self._show = max(1, show)

    def observe(self, record: GateRecord | Driven) -> None:
        if isinstance(record, GateRecord):
            self._admit(record)
        elif self.run.parameters.get('gate_folder') and record.slot == CANDIDATE_SLOT:
            self._judge(record.policy)

    def _admit(self, record: GateRecord) -> None:
        digest = digest_of(record.policy)
        if record.result == ADMITTED_BEFORE:
            self._open.pop(digest, None)
            self._counts.pop(digest, None)
        if record.result in (*ADMITTING, ADMITTED_BEFORE):
            self._admitted.add(digest)

    def _judge(self, policy: str) -> None:
        # a request that no policy answered names none
        if not policy:
            return
        self.tally.judged += 1
        digest = digest_of(policy)
        if digest in self._admitted:
            return
        _, lines = self._open.setdefault(digest, (policy, []))
        self._counts[digest] = self._counts.get(digest, 0) + 1
        if len(lines) < self._show:
            lines.append(self.run.position)

    def finish(self) -> None:
        if self.run.parameters.get('gate_folder'):
            self.tally.why_not = NONE_DROVE
        for digest, (policy, lines) in self._open.items():
            for line in lines:
                self.tally.add_violation(f'{policy} drives, and no gate has admitted it', line)
            self.tally.violations += self._counts[digest] - len(lines)
        if self.tally.violations and self.run.is_partial:
            self.tally.retract(PARTIAL)


def digest_of(fingerprint: str) -> str:
    """Return the digest of a policy; the name before the @ may differ by server."""
    return fingerprint.rpartition('@')[2]
