# SPDX-License-Identifier: Apache-2.0
"""
Set the split, and start, stop and finish a rollout, with the name of the operator: the commands of
ControlSlot that change parameters. The executor thread.
"""

from __future__ import annotations

from typing import Any, Protocol

from lerobot_serve.contract.fingerprint import weights_of
from lerobot_serve.router.canary.canary import CanaryCommandRejected
from lerobot_serve.router.canary.controller import CanaryController
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.replicas.slot import Slot
from lerobot_serve.router.shadow.qualification import Qualification

# ControlSlot.command
SET_SPLIT, CANARY_START, CANARY_STOP, CANARY_FINISH, SKIP_SHADOW = 9, 10, 11, 12, 14
ROLLOUT_COMMANDS = (SET_SPLIT, CANARY_START, CANARY_STOP, CANARY_FINISH, SKIP_SHADOW)
MOST_PERCENT = 100


class RolloutCore(Protocol):
    """The part of a RouterCore that these commands use."""

    canary: CanaryController
    parameters: RouterParameters

    @property
    def slots(self) -> dict[str, Slot]: ...

    @property
    def qualification(self) -> Qualification: ...

    def set_parameters(self, by: str, **values: Any) -> None: ...

    def check_shares(self, old: int, new: int) -> None: ...


def run_rollout_command(
    core: RolloutCore, command: int, by: str, split_percent: int, plan: tuple[str, ...]
) -> str:
    """
    Run a command and return a text with its effect. Raises CanaryCommandRejected and
    ParameterError, without a change.
    """
    if len(core.slots) < 2:
        raise CanaryCommandRejected('this router has one slot: it has no split and no rollout')
    if split_percent > MOST_PERCENT:
        raise CanaryCommandRejected(f'split_percent must be in [0, 100], got {split_percent}')
    if command == CANARY_START:
        return _start(core, by, plan)
    if command == SKIP_SHADOW:
        return _skip_shadow(core, by)
    if command == SET_SPLIT:
        core.set_parameters(by, split_percent=split_percent)
        return f'{split_percent} % of new episodes to slot a'
    # a request that does not set the split must not give all robots the candidate
    return _end(core, by, split_percent or MOST_PERCENT, is_finish=command == CANARY_FINISH)


def _start(core: RolloutCore, by: str, plan: tuple[str, ...]) -> str:
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


def _skip_shadow(core: RolloutCore, by: str) -> str:
    policy = core.slots['b'].policy
    if not policy:
        raise CanaryCommandRejected('slot b serves no policy yet; start its policy servers')
    core.qualification.waive(policy, by)
    return f'{policy} may begin without its shadow requirements'


def _end(core: RolloutCore, by: str, split_percent: int, *, is_finish: bool) -> str:
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
