# SPDX-License-Identifier: Apache-2.0
"""Run the ControlSlot commands of operators on a slot or the canary. The executor thread."""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.api.rollout_commands import (
    CANARY_FINISH,
    CANARY_START,
    CANARY_STOP,
    ROLLOUT_COMMANDS,
    run_rollout_command,
    SET_SPLIT,
    SKIP_SHADOW,
)
from lerobot_serve.router.canary.canary import CanaryCommandRejected
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.replicas.health import HealthState
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.storage.decisions import NotDurable

# ControlSlot.command
DRAIN, RESTORE, PROBE, LIFT_VERDICT, NOTE = 1, 2, 3, 8, 13
CANARY_PAUSE, CANARY_RESUME, CANARY_PROMOTE, CANARY_ROLLBACK = 4, 5, 6, 7
CANARY_COMMANDS = {
    CANARY_PAUSE: 'pause',
    CANARY_RESUME: 'resume',
    CANARY_PROMOTE: 'promote',
    CANARY_ROLLBACK: 'rollback',
}
NAMES = {
    DRAIN: 'drain',
    RESTORE: 'restore',
    PROBE: 'probe',
    CANARY_PAUSE: 'rollout pause',
    CANARY_RESUME: 'rollout resume',
    CANARY_PROMOTE: 'rollout promote',
    CANARY_ROLLBACK: 'rollout abort',
    LIFT_VERDICT: 'lift verdict',
    SET_SPLIT: 'split',
    CANARY_START: 'rollout start',
    CANARY_STOP: 'rollout stop',
    CANARY_FINISH: 'rollout finish',
    NOTE: 'note',
    SKIP_SHADOW: 'skip shadow',
}


class SlotCommandRejected(Exception):
    """A command that cannot run; the text has the reason and the remedy."""


def run_slot_command(
    core: RouterCore,
    command: int,
    slot_name: str,
    reason: str,
    *,
    at_once: bool = False,
    split_percent: int = 0,
    plan: tuple[str, ...] = (),
) -> str:
    """
    Run a command, record it, and return a text with its effect. Raises SlotCommandRejected.

    A command that withholds a policy always takes effect; a command that admits a policy is
    rejected if it cannot be made durable.
    """
    reason = reason or 'no reason given'
    if at_once and command not in (DRAIN, CANARY_ROLLBACK):
        raise SlotCommandRejected(
            'now is for DRAIN and CANARY_ROLLBACK; leave it false for other commands'
        )
    # of an earlier decision
    core.decisions.take_conflict()
    try:
        if command in CANARY_COMMANDS:
            _check_no_slot(slot_name)
            if command == CANARY_PROMOTE:
                _check_step(core, plan)
            text = core.run_canary_command(CANARY_COMMANDS[command], reason, at_once=at_once)
        elif command in ROLLOUT_COMMANDS:
            _check_no_slot(slot_name)
            with core.decisions.transaction():
                text = run_rollout_command(core, command, reason, split_percent, plan)
                core.settle_rollout()
        elif command == NOTE:
            _check_no_slot(slot_name)
            text = 'recorded'
        else:
            text = _run_slot_command(core, command, slot_name, reason, at_once)
        if conflict := core.decisions.take_conflict():
            raise SlotCommandRejected(conflict)
    except (CanaryCommandRejected, NotDurable, ParameterError) as error:
        raise SlotCommandRejected(str(error)) from error
    if core.recorder:
        core.recorder.command(NAMES[command], slot_name, reason, text)
    problem = core.writer.text
    if problem:
        text += f'; NOT DURABLE, lost at restart: {problem}'
    return text


def _check_no_slot(slot_name: str) -> None:
    if slot_name:
        raise SlotCommandRejected('slot must be empty for commands of the rollout')


def _check_step(core: RouterCore, expected: tuple[str, ...]) -> None:
    """Raise SlotCommandRejected for a promotion of another step than the present one."""
    canary = core.canary.canary
    if expected not in ((), (str(canary.step),)):
        raise SlotCommandRejected(
            f'not promoted: the command is for CanaryState.step {", ".join(expected)}, and the '
            f'rollout is at {canary.step}: {canary.text}. Look at the rollout, then promote it '
            'again'
        )


def _run_slot_command(
    core: RouterCore, command: int, slot_name: str, reason: str, at_once: bool
) -> str:
    if command not in (DRAIN, *SLOT_COMMANDS):
        known = ', '.join(map(str, sorted(NAMES)))
        raise SlotCommandRejected(f'unknown command {command}; allowed: {known} (see ControlSlot)')
    slot = core.slots.get(slot_name)
    if slot is None:
        raise SlotCommandRejected(f'unknown slot {slot_name!r}; allowed: {", ".join(core.slots)}')
    if command == DRAIN:
        return _drain(core, slot, reason, at_once)
    return SLOT_COMMANDS[command](core, slot)


def _drain(core: RouterCore, slot: Slot, reason: str, at_once: bool) -> str:
    core.decisions.drain(slot, reason, at_once=at_once)
    limit_s = core.parameters.episode_drain_timeout_s
    leave = 'with their next request' if at_once else f'at their end, within {limit_s:g} s'
    text = f'slot {slot.name} receives no new episodes; running ones leave {leave}'
    if not any(core.shares().values()):
        text += '; no other slot is eligible: new episodes are refused'
    return text


def _restore(core: RouterCore, slot: Slot) -> str:
    core.decisions.end_drain(slot)
    with core.table.lock:
        slot.health.mark_healthy()
        for replica in slot:
            replica.health.mark_healthy()
    if slot.text:
        return f'slot {slot.name} reset; still not eligible: {slot.text}'
    return f'slot {slot.name} receives episodes again'


def _probe(core: RouterCore, slot: Slot) -> str:
    with core.table.lock:
        healths = (slot.health, *(replica.health for replica in slot))
        failing = [health for health in healths if health.state is HealthState.UNHEALTHY]
        for health in failing:
            health.probe_now()
    if not failing:
        why = slot.text or 'it is healthy'
        raise SlotCommandRejected(f'nothing to probe in slot {slot.name}: {why}')
    return (
        f'probing slot {slot.name}: it receives a copy of the next request; the reply is discarded'
    )


def _lift(core: RouterCore, slot: Slot) -> str:
    policy = slot.policy
    lifted = core.decisions.lift(slot, policy)
    if not lifted:
        unknown = 'its policy is not known yet; start its policy servers, then retry'
        raise SlotCommandRejected(f'no verdict bars slot {slot.name} ({policy or unknown})')
    if slot.text:
        return (
            f'the verdict on {lifted} is lifted; slot {slot.name} is still not eligible: '
            f'{slot.text}'
        )
    return f'the verdict on {lifted} is lifted; slot {slot.name} may receive episodes'


SLOT_COMMANDS: dict[int, Callable[[RouterCore, Slot], str]] = {
    RESTORE: _restore,
    PROBE: _probe,
    LIFT_VERDICT: _lift,
}
