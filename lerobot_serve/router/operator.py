"""An operator's word on a slot or on the canary: ControlSlot. The executor thread."""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.router.canary.canary import NotAllowed
from lerobot_serve.router.health import State
from lerobot_serve.router.serving import Serving
from lerobot_serve.router.slots import Slot

# ControlSlot.command
DRAIN, RESTORE, PROBE = 1, 2, 3
CANARY_PAUSE, CANARY_RESUME, CANARY_PROMOTE, CANARY_ROLLBACK = 4, 5, 6, 7
CANARY = {
    CANARY_PAUSE: 'pause',
    CANARY_RESUME: 'resume',
    CANARY_PROMOTE: 'promote',
    CANARY_ROLLBACK: 'rollback',
}


class NotDone(Exception):
    """What was asked for cannot be done; says why and what to do."""


def operate(serving: Serving, command: int, slot_name: str, reason: str) -> str:
    """Do it and return what was done, in words. Raises NotDone."""
    reason = reason or 'no reason given'
    if command in CANARY:
        if slot_name:
            raise NotDone('slot is for slots; leave it empty to talk to the canary')
        try:
            return serving.control_canary(CANARY[command], reason)
        except NotAllowed as error:
            raise NotDone(str(error)) from error
    act = SLOT_COMMANDS.get(command)
    if act is None:
        known = ', '.join(map(str, [*SLOT_COMMANDS, *CANARY]))
        raise NotDone(f'there is no command {command}; there are {known} (see ControlSlot)')
    slot = serving.slots.get(slot_name)
    if slot is None:
        raise NotDone(f'there is no slot {slot_name!r}; there are {", ".join(serving.slots)}')
    with serving.dispatcher.lock:
        text = act(slot, reason)
        if command == DRAIN and not any(each.is_healthy for each in serving.slots.values()):
            text += '; no other slot takes any, so new ones begin there all the same'
    return text


def _drain(slot: Slot, reason: str) -> str:
    slot.health.close(f'by an operator: {reason}')
    return f'slot {slot.name} gets no new episodes; running ones end there'


def _restore(slot: Slot, reason: str) -> str:
    slot.health.restore()
    for replica in slot:
        replica.health.restore()
    if slot.text:
        return f'nothing is held against slot {slot.name} any more, but: {slot.text}'
    return f'slot {slot.name} gets episodes again'


def _probe(slot: Slot, reason: str) -> str:
    on_trial = [h for h in (slot.health, *(r.health for r in slot)) if h.state is State.DRAINED]
    if not on_trial:
        why = slot.text or 'it is healthy'
        raise NotDone(f'there is nothing to try in slot {slot.name}: {why}')
    for health in on_trial:
        health.hurry()
    return f'a copy of the next request goes to slot {slot.name}, its answer to no robot'


SLOT_COMMANDS: dict[int, Callable[[Slot, str], str]] = {
    DRAIN: _drain,
    RESTORE: _restore,
    PROBE: _probe,
}
