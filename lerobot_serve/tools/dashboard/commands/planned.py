# SPDX-License-Identifier: Apache-2.0
"""
What a command would do now, by the tables of the verbs, and how to do it. Pure functions of the
newest states, but for `Planned.run`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TYPE_CHECKING, TypeVar

from lerobot_serve.contract.records import SlotState
from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.tools.dashboard.commands import request as commands
from lerobot_serve.tools.dashboard.commands.request import CommandRequest
from lerobot_serve.tools.operate import operations
from lerobot_serve.tools.operate.commands import robot_rule
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.names import resolve_slot
from lerobot_serve.tools.operate.outcome import Result
from lerobot_serve.tools.operate.robots import every_robot
from lerobot_serve.tools.operate.rollout import rollouts
from lerobot_serve.tools.operate.rollout.steering import (
    slot_steering_rule,
    split_rule,
    steered_slot,
    steering_rule,
)
from lerobot_serve.tools.operate.rule import Effect, RobotVerb, Rule, Verb

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

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
    of the verbs, None for what takes minutes, see `loading`. `run` raises UserError and
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
    if verb in commands.ROBOT:
        robot, robot_verb = fleet.robot(target), commands.ROBOT[verb]
        return Planned(
            robot.node,
            robot_rule(robot_verb, robot),
            lambda client: operations.run_robot_verb(client, robot, robot_verb, reason),
        )
    if verb in commands.EVERY_ROBOT:
        robots = fleet.robots()
        rule = every_robot.every_robot_rule(commands.EVERY_ROBOT[verb], robots)
        return Planned('all robots', rule, lambda client: done_on_all(client, request, robots))
    if verb == commands.OUTCOME:
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

    if verb == commands.SPLIT:
        percent = request.share_percent
        return Planned(
            router.name,
            split_rule(router, percent),
            lambda client: operations.set_split(client, router, percent, reason),
        )
    if verb == commands.START:
        steps = rollouts.parsed_plan(request.rollout_plan)
        return Planned(router.name, rollouts.start_rule(router, request.policy, steps, read_plan))
    if verb in commands.LOADING:
        return Planned(router.name, rollouts.finish_rule(router))
    if commands.ROLLOUT.get(verb) is Verb.STOP:
        return Planned(
            router.name,
            steering_rule(Verb.STOP, router, read_plan),
            lambda client: rollouts.stop(client, router, reason),
        )
    if verb in commands.SLOT:
        slot = resolve_slot(request.slot, router)
        if slot.state not in tuple(SlotState.State):
            raise UserError(f'slot {slot.slot} is in a state that this version does not know')
        slot_verb = commands.SLOT[verb]
        rule = slot_steering_rule(slot_verb, slot, router, read_plan, at_once=at_once)
        name = slot.slot
    else:
        step = commands.ROLLOUT[verb]
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
    verb = commands.EVERY_ROBOT[request.verb]

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
