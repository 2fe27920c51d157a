# SPDX-License-Identifier: Apache-2.0
"""Two versions of the shipped policy in canary behind a gateway, each node with a trace."""

from __future__ import annotations

from pathlib import Path
import signal

from lerobot_serve.tools.audit.engine import AuditResult, CheckStatus, run_audit
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve_interfaces.msg import CanaryState, EpisodeOutcome
from support.gateway.doors_rig import start_process
from support.nodes.router_rig import RouterRig
from support.paths import REPOSITORY

POLICIES = {'a': ('v1', 'reach_v1'), 'b': ('v2', 'reach')}
CALLERS_LIMIT = 12
# callers without a cage report no commands, which two guards would wait for; the step stays
CANARY = {
    'canary.plan': "['50:1000:0', '100']",
    'canary.minimum_step_s': 0.0,
    'canary.max_trip_percent': 0.0,
    'canary.max_fallback_percent': 0.0,
    'canary.max_latency_ratio': 1000.0,
}


class ReachCanary:
    """Used by the thread of a test."""

    def __init__(self, rig: RouterRig, door: str, **parameters: object) -> None:
        """Return when v2 gets episodes; `parameters` are those of the door."""
        self.rig, self.traces = rig, rig.folder / 'traces'
        self.callers = 0
        self.reported = dict.fromkeys(POLICIES, 0)
        for slot, (name, folder) in POLICIES.items():
            rig.fleet.start(
                slot,
                'policy_server',
                namespace=f'/{slot}',
                policy_path=REPOSITORY / 'config' / 'policies' / folder,
                policy_name=name,
                slot=slot,
                status_period_s=0.1,
                trace_folder=self.traces,
            )
        # a busy machine is not a failure of a policy
        rig.router(
            slot_a=['a'],
            slot_b=['b'],
            trace_folder=self.traces,
            reply_timeout_s=5.0,
            slot_unhealthy_threshold=1000,
            **CANARY,
        )
        self.address = start_process(rig, door, **parameters)
        rig.wait_for_health('healthy')
        rig.wait(lambda: rig.get('split_percent') == 50, 'v2 is in canary')

    def placements(self) -> list[tuple[str, str, str]]:
        """Return caller, episode and slot of each placement in the trace of the router."""
        return [
            (record['client_id'], record['episode_id'], record['slot'])
            for file in self.traces.glob('*.jsonl')
            for _, record in read_records(file)
            if record['kind'] == 'placement'
        ]

    def report_success(self, episode_id: str, slot: str) -> None:
        """Report the outcome of an episode that was placed in a slot."""
        answer = self.rig.report(episode_id, EpisodeOutcome.SUCCESS)
        assert answer.accepted, answer.text
        self.reported[slot] += 1

    def check_canary(self) -> None:
        """Fail unless the canary still runs and counts the outcomes of both slots."""

        def is_counted() -> bool:
            state = self.rig.watch.last[CanaryState]
            assert state.state == CanaryState.RUNNING, state.text
            counted = {'a': state.champion_successes, 'b': state.candidate_successes}
            return counted == self.reported

        self.rig.wait(is_counted, f'the canary counts {self.reported}')
        assert all(self.reported.values())

    def audited(self) -> AuditResult:
        """End all nodes in order, and audit their traces."""
        for name in ('gateway', 'router', *POLICIES):
            process = self.rig.fleet.processes[name]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, name
        return run_audit([self.traces])

    def check_audit(self) -> None:
        """Fail unless the audit holds and counts every caller as one without a cage."""
        found = self.audited()
        assert sorted(run.role for run in found.runs) == ['router', 'server', 'server']
        assert all(run.is_complete for run in found.runs)
        assert not sum(result.violations + result.gaps for result in found.results), found.results
        assert found.outcome in (CheckStatus.HOLDS, CheckStatus.HOLDS_AS_RECORDED)
        assert found.uncaged.callers == self.callers
        assert 'a gateway' in found.uncaged.text


def results_in(file: Path) -> list[str]:
    """Return the lines that a simulated robot has completed."""
    return file.read_text().splitlines() if file.exists() else []
