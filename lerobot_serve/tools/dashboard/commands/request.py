# SPDX-License-Identifier: Apache-2.0
"""A command of the page, read from JSON and checked. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from lerobot_serve.errors import UserError
from lerobot_serve.files.load import load, Record, Refused, rule
from lerobot_serve.tools.operate.robots.every_robot import EVERY_VERBS
from lerobot_serve.tools.operate.rollout.rollouts import DEFAULT_PLAN, parsed_plan
from lerobot_serve.tools.operate.rollout.steering import check_percent, STEERING_VERBS
from lerobot_serve.tools.operate.rule import RobotVerb, SlotVerb, Verb

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


class BadRequest(UserError):
    """A request that is not a command."""


def _text(limit: int) -> Meta:
    return Meta(max_length=limit)


PageVerb = Annotated[str, rule(lambda verb: verb in VERBS, f'one of {", ".join(VERBS)}')]
Outcome = Annotated[
    str, rule(lambda word: word in ('', *OUTCOMES), f'one of {", ".join(OUTCOMES)}')
]


class CommandRequest(Record, frozen=True):
    """
    One press of a button. `confirm` is the text that the person has read, None before; `target` is
    a node, or the id of an episode; `policy` and `plan` are those of `rollout start`.
    """

    verb: PageVerb
    target: Annotated[str, _text(256)] = ''
    slot: Annotated[str, _text(16)] = ''
    percent: int | None = None
    at_once: bool = False
    outcome: Outcome = ''
    policy: Annotated[str, _text(1024)] = ''
    plan: Annotated[str, _text(256)] | None = None
    reason: Annotated[str, _text(512)] = ''
    confirm: Annotated[str, _text(4096)] | None = None

    def __post_init__(self) -> None:
        for key in ('target', *NEEDED.get(self.verb, ())):
            if getattr(self, key) in ('', None):
                raise ValueError(f'{self.verb} needs {key}')
        if self.at_once and self.verb not in AT_ONCE:
            raise ValueError(f'at_once is of {" and ".join(AT_ONCE)}, not of {self.verb}')
        if self.verb != START and (self.policy or self.plan is not None):
            key = 'policy' if self.policy else 'plan'
            raise ValueError(f'{key} is of {START}, not of {self.verb}')

    @property
    def rollout_plan(self) -> str:
        return DEFAULT_PLAN if self.plan is None else self.plan

    @property
    def share_percent(self) -> int:
        return self.percent or 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The status and the JSON body of the reply to a command."""

    status: int
    body: dict[str, Any]


def command_request(data: Any) -> CommandRequest:
    """Return the command of a JSON value. Raises UserError with the field that is wrong."""
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if value is not None}
    try:
        request = load(CommandRequest, data, 'command')
    except Refused as refused:
        raise BadRequest(str(refused)) from None
    check_percent(request.share_percent)
    parsed_plan(request.rollout_plan)
    return request
