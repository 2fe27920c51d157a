# SPDX-License-Identifier: Apache-2.0
"""Maps the states of servers, routers and rollouts to entries. One thread."""

from __future__ import annotations

from lerobot_serve.contract.records import CanaryState, RouterState, ServerStatus, SlotState
from lerobot_serve.tools.rerun_view.entries import (
    because,
    Count,
    Emit,
    Level,
    NODES,
    PartMapping,
    path_part,
    Scalar,
    Times,
)

GOOD = (ServerStatus.State.ACTIVE, ServerStatus.State.INACTIVE, ServerStatus.State.UNCONFIGURED)
Rollout, HEALTHY = CanaryState.State, SlotState.State.HEALTHY
CANARY_LEVELS = {Rollout.UNDECIDED: Level.WARN, Rollout.ROLLED_BACK: Level.ERROR}


class NodeMapping(PartMapping):
    """One policy server or router, by its full name."""

    def __init__(self, node: str, emit: Emit, count: Count) -> None:
        # a full name begins with a /
        super().__init__(NODES, node.strip('/'), emit, count)

    def on_status(self, status: ServerStatus, time_ns: int) -> None:
        times = self._times(status.stamp.ns, time_ns)
        if self._change('server', status.state.word, times):
            level = Level.INFO if status.state in GOOD else Level.WARN
            self._event(because(status.state.word, status.text), times, level)
        self._on_policy('policy', status.policy, times)
        for name in ('load', 'inference_ms_p50', 'inference_ms_p99'):
            self._emit((name,), Scalar(getattr(status, name)), times)

    def on_router(self, router: RouterState, time_ns: int) -> None:
        times = self._times(router.stamp.ns, time_ns)
        if self._change('router', router.health, times):
            level = Level.INFO if router.health == 'healthy' else Level.WARN
            self._event(because(router.health, router.text), times, level)
        self._emit(('sessions',), Scalar(router.sessions), times)
        for slot in router.slots:
            name = f'slot_{path_part(slot.slot)}'
            if self._change(name, slot.state.word, times):
                level = Level.INFO if slot.state == HEALTHY else Level.WARN
                text = because(f'slot {slot.slot} {slot.state.word}', slot.text)
                self._event(text, times, level)
            self._on_policy(f'{name}_policy', slot.policy, times)
            self._emit(('share_percent', name), Scalar(slot.share_percent), times)

    def on_canary(self, canary: CanaryState, time_ns: int) -> None:
        times = self._times(canary.stamp.ns, time_ns)
        if self._change('rollout', canary.state.word, times):
            level = CANARY_LEVELS.get(canary.state, Level.INFO)
            self._event(because(f'rollout {canary.state.word}', canary.text), times, level)
        if canary.state == Rollout.OFF:
            return
        self._emit(('evidence', 'not_worse_log10'), Scalar(canary.log10_evidence_not_worse), times)
        self._emit(('evidence', 'worse_log10'), Scalar(canary.log10_evidence_worse), times)

    def _on_policy(self, state: str, policy: str, times: Times) -> None:
        if self._change(state, policy, times) and policy:
            self._event(f'{state.replace("_", " ")}: {policy}', times)

    def _times(self, stamp_ns: int, time_ns: int) -> Times:
        return Times(time_ns, self._clock, stamp_ns)
