"""An operator's word on a slot or on the canary: ControlSlot. The executor thread."""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.router.canary.canary import CanaryCommandRejected
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.replicas.health import HealthState
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.storage.decisions import NotDurable

# ControlSlot.command
DRAIN, RESTORE, PROBE, LIFT_VERDICT = 1, 2, 3, 8
CANARY_PAUSE, CANARY_RESUME, CANARY_PROMOTE, CANARY_ROLLBACK = 4, 5, 6, 7
CANARY_COMMANDS = {
    CANARY_PAUSE: 'pause',
    CANARY_RESUME: 'resume',
    CANARY_PROMOTE: 'promote',
    CANARY_ROLLBACK: 'rollback',
}


class SlotCommandRejected(Exception):
    """What was asked for cannot be done; says why and what to do."""


def run_slot_command(
    serving: RouterCore, command: int, slot_name: str, reason: str, *, at_once: bool = False
) -> str:
    """
    Do it and return what was done, in words. Raises NotDone.

    What keeps a policy from robots always acts; what lets one drive is refused where it cannot be
    made durable.
    """
    reason = reason or 'no reason given'
    if at_once and command not in (DRAIN, CANARY_ROLLBACK):
        raise SlotCommandRejected(
            'now is for DRAIN and CANARY_ROLLBACK; leave it false for other commands'
        )
    try:
        if command in CANARY_COMMANDS:
            text = _of_canary(serving, command, slot_name, reason, at_once)
        else:
            text = _of_slot(serving, command, slot_name, reason, at_once)
    except (CanaryCommandRejected, NotDurable) as error:
        raise SlotCommandRejected(str(error)) from error
    problem = serving.writer.text
    if problem:
        text += f'; NOT DURABLE, a router that starts again does not know it: {problem}'
    return text


def _of_canary(
    serving: RouterCore, command: int, slot_name: str, reason: str, at_once: bool
) -> str:
    if slot_name:
        raise SlotCommandRejected('slot is for slots; leave it empty for the canary')
    return serving.run_canary_command(CANARY_COMMANDS[command], reason, at_once=at_once)


def _of_slot(serving: RouterCore, command: int, slot_name: str, reason: str, at_once: bool) -> str:
    if command not in (DRAIN, *SLOT_COMMANDS):
        known = ', '.join(map(str, [DRAIN, *SLOT_COMMANDS, *CANARY_COMMANDS]))
        raise SlotCommandRejected(
            f'there is no command {command}; there are {known} (see ControlSlot)'
        )
    slot = serving.slots.get(slot_name)
    if slot is None:
        raise SlotCommandRejected(
            f'there is no slot {slot_name!r}; there are {", ".join(serving.slots)}'
        )
    if command == DRAIN:
        return _drain(serving, slot, reason, at_once)
    return SLOT_COMMANDS[command](serving, slot)


def _drain(serving: RouterCore, slot: Slot, reason: str, at_once: bool) -> str:
    serving.intent.drain(slot, reason, at_once=at_once)
    left = serving.parameters.leave_within_s
    leave = 'with their next request' if at_once else f'at their end, within {left:g} s'
    text = f'slot {slot.name} gets no new episodes; running ones leave {leave}'
    if not any(serving.shares().values()):
        text += '; no other slot may have any: robots that begin one are refused'
    return text


def _restore(serving: RouterCore, slot: Slot) -> str:
    serving.intent.end_drain(slot)
    with serving.dispatcher.lock:
        slot.health.restore()
        for replica in slot:
            replica.health.restore()
    if slot.text:
        return f'slot {slot.name} is drained no more, but takes no episodes: {slot.text}'
    return f'slot {slot.name} gets episodes again'


def _probe(serving: RouterCore, slot: Slot) -> str:
    with serving.dispatcher.lock:
        healths = (slot.health, *(replica.health for replica in slot))
        failing = [health for health in healths if health.state is HealthState.UNHEALTHY]
        for health in failing:
            health.probe_now()
    if not failing:
        why = slot.text or 'it is healthy'
        raise SlotCommandRejected(f'there is nothing to probe in slot {slot.name}: {why}')
    return f'a copy of the next request goes to slot {slot.name}, its answer to no robot'


def _lift(serving: RouterCore, slot: Slot) -> str:
    lifted = serving.intent.lift(slot)
    if not lifted:
        raise SlotCommandRejected(
            f'no verdict bars slot {slot.name} ({slot.policy or "no policy yet"})'
        )
    if slot.text:
        return f'the verdict on {lifted} is lifted, but slot {slot.name} takes none: {slot.text}'
    return f'the verdict on {lifted} is lifted; slot {slot.name} may get episodes'


SLOT_COMMANDS: dict[int, Callable[[RouterCore, Slot], str]] = {
    RESTORE: _restore,
    PROBE: _probe,
    LIFT_VERDICT: _lift,
}
