# SPDX-License-Identifier: Apache-2.0
"""A command of the page, read from JSON and checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate.commands import RobotVerb, SlotVerb, Verb
from lerobot_serve.tools.operate.robots.every_robot import EVERY_VERBS
from lerobot_serve.tools.operate.rollout.rollouts import DEFAULT_PLAN, parsed_plan
from lerobot_serve.tools.operate.rollout.steering import check_percent, STEERING_VERBS

# verb of the page -> the verb of the tables
ROLLOUT: dict[str, Verb] = {f'rollout {verb.value}': verb for verb in STEERING_VERBS}
# they take minutes where servers load a policy
LOADING: dict[str, Verb] = {f'rollout {verb.value}': verb for verb in (Verb.START, Verb.FINISH)}
START = f'rollout {Verb.START.value}'
SLOT = {verb.value: verb for verb in (SlotVerb.DRAIN, SlotVerb.RESTORE)}
ROBOT = {f'robot {verb.value}': verb for verb in RobotVerb}
# on all robots; the target is a word for them
EVERY_ROBOT = {f'robots {verb.value}': verb for verb in EVERY_VERBS}
SPLIT, OUTCOME = 'split', 'outcome'
VERBS = (*ROLLOUT, *LOADING, *SLOT, *ROBOT, *EVERY_ROBOT, SPLIT, OUTCOME)
# what a verb needs beside its target, and may have
NEEDED: dict[str, tuple[str, ...]] = {**dict.fromkeys(SLOT, ('slot',)), SPLIT: ('percent',)}
NEEDED[OUTCOME] = ('outcome',)
AT_ONCE = ('rollout abort', 'drain')
OUTCOMES = ('success', 'failure')
TARGET_LIMIT, REASON_LIMIT, CONFIRM_LIMIT = 256, 512, 4096
LIMITS = {'target': TARGET_LIMIT, 'reason': REASON_LIMIT, 'slot': 16, 'policy': 1024, 'plan': 256}


class BadRequest(UserError):
    """A request that is no command."""


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """
    One press of a button. `confirm` is the text that the person has read, None before; `target` is
    a node, or the id of an episode; `policy` and `plan` are those of `rollout start`.
    """

    verb: str
    target: str
    slot: str = ''
    percent: int = 0
    at_once: bool = False
    outcome: str = ''
    policy: str = ''
    plan: str = DEFAULT_PLAN
    reason: str = ''
    confirm: str | None = None


FIELDS: dict[str, type] = {
    'verb': str,
    'target': str,
    'slot': str,
    'percent': int,
    'at_once': bool,
    'outcome': str,
    'policy': str,
    'plan': str,
    'reason': str,
    'confirm': str,
}


def command_request(data: Any) -> CommandRequest:
    """Return the command of a JSON value. Raises BadRequest with the field that is wrong."""
    if not isinstance(data, Mapping):
        raise BadRequest('a command must be a JSON object')
    given = {key: value for key, value in data.items() if value is not None}
    if unknown := sorted(map(str, given.keys() - FIELDS.keys())):
        raise BadRequest(
            f'{unknown[0][:40]!r} is no field of a command; known: {", ".join(FIELDS)}'
        )
    for key, value in given.items():
        if type(value) is not FIELDS[key]:
            raise BadRequest(f'{key} must be of type {FIELDS[key].__name__}, got {value!r:.60}')
    return _checked(given)


def _checked(given: Mapping[str, Any]) -> CommandRequest:
    verb = given.get('verb', '')
    if verb not in VERBS:
        raise BadRequest(f'verb must be one of {", ".join(VERBS)}, got {verb!r:.60}')
    for key in ('target', *NEEDED.get(verb, ())):
        if key not in given or given[key] == '':
            raise BadRequest(f'{verb} needs {key}')
    for key, limit in LIMITS.items():
        if len(given.get(key, '')) > limit:
            raise BadRequest(f'{key} has at most {limit} characters, got {len(given[key])}')
    if len(given.get('confirm', '')) > CONFIRM_LIMIT:
        raise BadRequest(f'confirm has at most {CONFIRM_LIMIT} characters')
    if verb == SPLIT:
        check_percent(given['percent'])
    if given.get('at_once') and verb not in AT_ONCE:
        raise BadRequest(f'at_once is of {" and ".join(AT_ONCE)}, not of {verb}')
    for key in ('policy', 'plan'):
        if key in given and verb != START:
            raise BadRequest(f'{key} is of {START}, not of {verb}')
    if 'plan' in given:
        parsed_plan(given['plan'])
    if verb == OUTCOME and given['outcome'] not in OUTCOMES:
        raise BadRequest(f'outcome must be one of {", ".join(OUTCOMES)}')
    return CommandRequest(**given)
