# SPDX-License-Identifier: Apache-2.0
"""The traces of a rollout show by which gate a policy drove, and on what it was promoted."""

from __future__ import annotations

from pathlib import Path
import signal

import pytest
from support.router.rollout_rig import Fleet, PLAN

from lerobot_serve.router.canary.gate_record import GateRecord, write_record
from lerobot_serve.tools.audit.engine import CheckResult, CheckStatus, run_audit
from lerobot_serve_interfaces.msg import CanaryState
from lerobot_serve_interfaces.srv import ControlSlot

WELL = {'a': True, 'b': True}
END_S = 30.0


@pytest.fixture
def fleet(router_rig, tmp_path) -> Fleet:
    """A canary behind a gate, with a trace; the candidate is admitted."""
    for slot in ('a', 'b'):
        router_rig.server(slot, slot)
    start_router(router_rig, tmp_path)
    router_rig.wait_for_health('slot_b_drained')
    # drained is also a slot whose policy is not known yet
    router_rig.wait(
        lambda: all(slot.policy for slot in router_rig.state.slots), 'both policies are known'
    )
    champion, candidate = (slot.policy for slot in router_rig.state.slots)
    record = GateRecord(candidate, champion, 'passed', '', 30, 100, '', '')
    write_record(tmp_path / 'gates', record)
    made = Fleet(router_rig, router_rig.robot())
    router_rig.wait(lambda: router_rig.get('split_percent') == 50, 'the first step')
    return made


def start_router(rig, folder: Path) -> None:
    written = {'gate_folder': str(folder / 'gates'), 'trace_folder': str(folder / 'traces')}
    rig.router(slot_a=['a'], slot_b=['b'], **PLAN, **written)


def audited(rig, folder: Path) -> dict[str, CheckResult]:
    """End the router, and return the results of the audit of its trace."""
    router = rig.fleet.processes['router']
    router.send_signal(signal.SIGINT)
    assert router.wait(END_S) == 0
    return {each.check: each for each in run_audit([folder / 'traces']).results}


@pytest.mark.slow
def test_a_promotion_by_evidence_behind_a_gate_is_in_order(fleet, router_rig, tmp_path):
    fleet.play_until(CanaryState.PROMOTED, succeeds=WELL)
    assert fleet.play(WELL) == 'b'
    found = audited(router_rig, tmp_path)
    for check in ('gated', 'evidence'):
        assert found[check].outcome is CheckStatus.HOLDS, found[check]
    assert found['gated'].judged > 3
    assert found['evidence'].judged == 1


def test_a_promotion_by_an_operator_is_in_order(fleet, router_rig, tmp_path):
    fleet.play(WELL)
    assert router_rig.control(ControlSlot.Request.CANARY_PROMOTE, reason='it is good').success
    found = audited(router_rig, tmp_path)
    assert found['evidence'].outcome is CheckStatus.HOLDS, found['evidence']
    assert found['evidence'].judged == 1


def test_a_router_that_is_killed_in_a_trial_says_that_the_policy_was_admitted_before(
    fleet, router_rig, tmp_path
):
    fleet.play(WELL)
    router_rig.kill('router')
    router_rig.watch.last.clear()
    start_router(router_rig, tmp_path)
    router_rig.wait_for_health('healthy')
    fleet.client.open()
    while fleet.play(WELL) != 'b':
        pass
    found = audited(router_rig, tmp_path)
    assert found['gated'].violations == 0, found['gated']
