# SPDX-License-Identifier: Apache-2.0
"""What changed between two states of the router, as events of the demo. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator

from lerobot_serve.contract.records import SlotState
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.operate.fleet_state import RouterView

DRAINED = SlotState.State.DRAINED
# phase of the canary -> label of its begin
PHASE_MARKS = {
    CanaryPhase.PAUSED: 'paused',
    CanaryPhase.PROMOTED: 'promoted',
    CanaryPhase.ROLLED_BACK: 'rolled back',
}


def router_events(before: RouterView, after: RouterView) -> Iterator[tuple[str, str]]:
    """Yield the text and the label of each promotion, step, rollback, drain and restore."""
    old, new = before.canary, after.canary
    if new.state in PHASE_MARKS and new.state is not old.state:
        yield f'rollout of {new.candidate_policy}: {new.text}', PHASE_MARKS[new.state]
    elif new.state in ON_TRIAL and (old.state not in ON_TRIAL or old.step != new.step):
        yield f'{new.share_percent} % of new episodes to slot b', f'{new.share_percent} %'
    for slot in after.state.slots:
        earlier = before.slot(slot.slot)
        was_drained = earlier is not None and earlier.state is DRAINED
        if slot.state is DRAINED and earlier is not None and not was_drained:
            yield f'slot {slot.slot} is drained: {slot.text}', f'{slot.slot} drained'
        elif was_drained and slot.state is not DRAINED:
            yield f'slot {slot.slot} is restored', f'{slot.slot} restored'
