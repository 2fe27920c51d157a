# SPDX-License-Identifier: Apache-2.0
"""
Run the ControlSlot commands of operators on a slot or the rollout, with the name of the operator.
The executor thread.
"""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.contract.fingerprint import weights_of
from lerobot_serve.contract.records import ControlSlotRequest
from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.canary import CanaryCommandRejected
from lerobot_serve.router.core import RouterCore
from lerobot_serve.router.replicas.health import HealthState
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.storage.decisions import NotDurable

Command = ControlSlotRequest.Command
ROLLOUT_COMMANDS = (
    Command.SET_SPLIT,
    Command.CANARY_START,
    Command.CANARY_STOP,
    Command.CANARY_FINISH,
    Command.SKIP_SHADOW,
)
# -> method of Canary
CANARY_COMMANDS: dict[int, str] = {
    Command.CANARY_PAUSE: 'pause',
    Command.CANARY_RESUME: 'resume',
    Command.CANARY_PROMOTE: 'promote',
    Command.CANARY_ROLLBACK: 'rollback',
}
# as traces have them
NAMES: dict[int, str] = {
    **{each: each.word.replace('canary', 'rollout').replace('_', ' ') for each in Command},
    Command.CANARY_ROLLBACK: 'rollout abort',
    Command.SET_SPLIT: 'split',
}
MOST_PERCENT = 100


class SlotCommandRejected(Exception):
    """A command that cannot run; the text has the reason and the remedy."""


def run_slot_command(core: RouterCore, request: ControlSlotRequest) -> str:
    """
    Run a command, record it, and return a text with its effect. Raises SlotCommandRejected.

    A command that withholds a policy always takes effect; a command that admits a policy is
    rejected if it cannot be made durable.
    """
    command, reason = request.command, request.reason or 'no reason given'
    _check(core, request)
    # of an earlier decision
    core.decisions.take_conflict()
    try:
        if command in CANARY_COMMANDS:
            at_once = request.move_running_episodes
            text = core.canary.run_command(
                CANARY_COMMANDS[command], reason, core.now_ns, at_once=at_once
            )
        elif command in ROLLOUT_COMMANDS:
            with core.decisions.transaction():
                text = _run_rollout_command(core, request, reason)
                # another router may run the rollout
                if core.shared:
                    core.canary.settle(core.now_ns)
        elif command in SLOT_COMMANDS:
            text = SLOT_COMMANDS[command](core, core.slots[request.slot])
        else:
            text = 'recorded' if command == Command.NOTE else _drain(core, request, reason)
        if conflict := core.decisions.take_conflict():
            raise SlotCommandRejected(conflict)
    except (CanaryCommandRejected, NotDurable, ParameterError) as error:
        raise SlotCommandRejected(str(error)) from error
    if core.recorder:
        core.recorder.command(NAMES[command], request.slot, reason, text)
    problem = core.writer.text
    if problem:
        text += f'; NOT DURABLE, lost at restart: {problem}'
    return text


def _check(core: RouterCore, request: ControlSlotRequest) -> None:
    """Raise SlotCommandRejected for what cannot be run in any state."""
    command, at_once = request.command, request.move_running_episodes
    if at_once and command not in (Command.DRAIN, Command.CANARY_ROLLBACK):
        raise SlotCommandRejected(
            'now is for DRAIN and CANARY_ROLLBACK; leave it false for other commands'
        )
    if command in (*CANARY_COMMANDS, *ROLLOUT_COMMANDS, Command.NOTE):
        if request.slot:
            raise SlotCommandRejected('slot must be empty for commands of the rollout')
        if command == Command.CANARY_PROMOTE:
            _check_step(core, tuple(request.plan))
    elif command not in (Command.DRAIN, *SLOT_COMMANDS):
        known = ', '.join(map(str, sorted(NAMES)))
        raise SlotCommandRejected(f'unknown command {command}; allowed: {known} (see ControlSlot)')
    elif request.slot not in core.slots:
        raise SlotCommandRejected(
            f'unknown slot {request.slot!r}; allowed: {", ".join(core.slots)}'
        )


def _check_step(core: RouterCore, expected: tuple[str, ...]) -> None:
    """Raise SlotCommandRejected for a promotion of another step than the present one."""
    canary = core.canary.canary
    if expected not in ((), (str(canary.step),)):
        raise SlotCommandRejected(
            f'not promoted: the command is for CanaryState.step {", ".join(expected)}, and the '
            f'rollout is at {canary.step}: {canary.text}. Look at the rollout, then promote it '
            'again'
        )


def _run_rollout_command(core: RouterCore, request: ControlSlotRequest, by: str) -> str:
    """
    Run a command and return a text with its effect. Raises CanaryCommandRejected and
    ParameterError, without a change.
    """
    command, split_percent = request.command, request.split_percent
    if len(core.slots) < 2:
        raise CanaryCommandRejected('this router has one slot: it has no split and no rollout')
    if split_percent > MOST_PERCENT:
        raise CanaryCommandRejected(f'split_percent must be in [0, 100], got {split_percent}')
    if command == Command.CANARY_START:
        return _start_rollout(core, by, tuple(request.plan))
    if command == Command.SKIP_SHADOW:
        return _skip_shadow(core, by)
    if command == Command.SET_SPLIT:
        core.set_parameters(by, split_percent=split_percent)
        return f'{split_percent} % of new episodes to slot a'
    # a request that does not set the split must not give all robots the candidate
    return _end_rollout(
        core, by, split_percent or MOST_PERCENT, is_finish=command == Command.CANARY_FINISH
    )


def _start_rollout(core: RouterCore, by: str, plan: tuple[str, ...]) -> str:
    if not plan:
        raise CanaryCommandRejected('plan must have steps, for example 25, 50, 100')
    core.canary.check_start()
    if weights_of(core.slots['b'].policy) == weights_of(core.slots['a'].policy):
        raise CanaryCommandRejected(
            f'both slots serve {core.slots["b"].policy}; load the new policy into slot b first'
        )
    core.set_parameters(by, canary_plan=plan)
    core.canary.start(by=by)
    return core.canary.canary.text


def _skip_shadow(core: RouterCore, by: str) -> str:
    policy = core.slots['b'].policy
    if not policy:
        raise CanaryCommandRejected('slot b serves no policy yet; start its policy servers')
    core.qualification.waive(policy, by)
    return f'{policy} may begin without its shadow requirements'


def _end_rollout(core: RouterCore, by: str, split_percent: int, *, is_finish: bool) -> str:
    champion, candidate = core.slots['a'].policy, core.slots['b'].policy
    if is_finish and champion != candidate:
        raise CanaryCommandRejected(
            f'slot a serves {champion}, not the promoted {candidate}; load it there first'
        )
    # while the canary runs it owns the split: the plan goes first, unless the split is refused
    core.check_shares(core.parameters.split_percent, split_percent)
    core.set_parameters(by, canary_plan=())
    if is_finish:
        core.canary.add_event('finished', f'slot a serves {champion}; by: {by}')
    core.set_parameters(by, split_percent=split_percent)
    done = f'slot a serves {champion}; the plan is removed' if is_finish else 'the plan is removed'
    return f'{done}, {split_percent} % of new episodes to slot a'


def _drain(core: RouterCore, request: ControlSlotRequest, reason: str) -> str:
    slot, at_once = core.slots[request.slot], request.move_running_episodes
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
    Command.RESTORE: _restore,
    Command.PROBE: _probe,
    Command.LIFT_VERDICT: _lift,
}
