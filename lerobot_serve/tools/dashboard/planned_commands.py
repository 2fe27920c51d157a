# SPDX-License-Identifier: Apache-2.0
"""
A command of the page, read from JSON and checked; what it would do now, by the tables of the
verbs, and how to do it. Pure functions of the newest states, but for `Planned.run`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TYPE_CHECKING, TypeVar

from msgspec import Meta

from lerobot_serve.contract.records import SlotState
from lerobot_serve.errors import UserError
from lerobot_serve.files.load import load, Record, Refused, rule
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.tools.operate import operations
from lerobot_serve.tools.operate import robots as every_robot
from lerobot_serve.tools.operate.commands import robot_rule
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.names import resolve_slot
from lerobot_serve.tools.operate.outcome import Result
from lerobot_serve.tools.operate.robots import EVERY_VERBS
from lerobot_serve.tools.operate.rollout import rollouts
from lerobot_serve.tools.operate.rollout.rollouts import DEFAULT_PLAN, parsed_plan
from lerobot_serve.tools.operate.rollout.steering import (
    check_percent,
    slot_steering_rule,
    split_rule,
    steered_slot,
    steering_rule,
    STEERING_VERBS,
)
from lerobot_serve.tools.operate.rule import Effect, RobotVerb, Rule, SlotVerb, Verb

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient


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


T = TypeVar('T')


class FleetStates(Protocol):
    """The newest states; each raises UserError for a name that is not there."""

    def router(self, node: str) -> RouterView: ...

    def plan(self, router: str) -> CanaryPlan | None: ...

    def robot(self, node: str) -> RobotView: ...

    def robots(self) -> list[RobotView]: ...

    def router_of_episode(self, episode_id: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Planned:
    """
    A command in the state of now: the node it goes to, its rule, and what runs it by the functions
    of the verbs, None for what takes minutes, see `Loading`. `run` raises UserError and
    ResultUnknown.
    """

    node: str
    rule: Rule
    run: Callable[[FleetClient], Result] | None = None

    @property
    def text(self) -> str:
        """What a person reads and confirms."""
        return self.rule.text


def planned(request: CommandRequest, fleet: FleetStates) -> Planned:
    """Return what the command would do. Raises UserError for a target that is not there."""
    verb, target, reason = request.verb, request.target, request.reason
    if verb in ROBOT:
        robot, robot_verb = fleet.robot(target), ROBOT[verb]
        return Planned(
            robot.node,
            robot_rule(robot_verb, robot),
            lambda client: operations.run_robot_verb(client, robot, robot_verb, reason),
        )
    if verb in EVERY_ROBOT:
        robots = fleet.robots()
        rule = every_robot.every_robot_rule(EVERY_ROBOT[verb], robots)
        return Planned('all robots', rule, lambda client: done_on_all(client, request, robots))
    if verb == OUTCOME:
        node, outcome = fleet.router_of_episode(target), request.outcome
        return Planned(
            node,
            Rule(Effect.DO, f'report episode {target} as {outcome} to {node}'),
            lambda client: operations.report_outcome(client, node, target, outcome, reason),
        )
    return _of_router(request, fleet.router(target), fleet)


def _of_router(request: CommandRequest, router: RouterView, fleet: FleetStates) -> Planned:
    verb, reason, at_once = request.verb, request.reason, request.at_once

    def read_plan() -> CanaryPlan | None:
        return fleet.plan(router.name)

    if verb == SPLIT:
        percent = request.share_percent
        return Planned(
            router.name,
            split_rule(router, percent),
            lambda client: operations.set_split(client, router, percent, reason),
        )
    if verb == START:
        steps = rollouts.parsed_plan(request.rollout_plan)
        return Planned(router.name, rollouts.start_rule(router, request.policy, steps, read_plan))
    if verb in LOADING:
        return Planned(router.name, rollouts.finish_rule(router))
    if ROLLOUT.get(verb) is Verb.STOP:
        return Planned(
            router.name,
            steering_rule(Verb.STOP, router, read_plan),
            lambda client: rollouts.stop(client, router, reason),
        )
    if verb in SLOT:
        slot = resolve_slot(request.slot, router)
        if slot.state not in tuple(SlotState.State):
            raise UserError(f'slot {slot.slot} is in a state that this version does not know')
        slot_verb = SLOT[verb]
        rule = slot_steering_rule(slot_verb, slot, router, read_plan, at_once=at_once)
        name = slot.slot
    else:
        step = ROLLOUT[verb]
        rule = steering_rule(step, router, read_plan, at_once=at_once)
        name = steered_slot(step, router)
    return Planned(
        router.name,
        rule,
        lambda client: operations.run_rule(
            client, router, rule, verb=verb, slot=name, at_once=at_once, reason=reason
        ),
    )


def done_on_all(client: FleetClient, request: CommandRequest, robots: list[RobotView]) -> Result:
    """
    Run the verb on the robots whose states were confirmed, a pause also on those that are found.
    Raises UserError with those that do not confirm it.
    """
    verb = EVERY_ROBOT[request.verb]

    def show(_: every_robot.RobotResult) -> None:
        """All results are in one reply."""

    if verb is RobotVerb.PAUSE:
        nodes = [robot.node for robot in robots]
        results = every_robot.pause_every_robot(client, nodes, request.reason, show)
    else:
        results = every_robot.resume_every_robot(client, robots, request.reason, show)
    text = every_robot.summary(verb, results)
    lines = [f'{result.name}: {result.text}' for result in results if result.exit_status]
    if lines:
        raise UserError('. '.join([text, *lines]))
    return Result(request.verb, 'all robots', text, client.operator)


def checked_target(found: T | None, node: str, what: str) -> T:
    """Return a target. Raises UserError when it is not there."""
    if found is None:
        raise UserError(
            f'no {what} {node[:80]!r} is heard of; it ended, or the page is old: reload it. '
            'Nothing was changed'
        )
    return found
