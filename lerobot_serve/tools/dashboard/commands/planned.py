# SPDX-License-Identifier: Apache-2.0
"""What a command would do now, by the tables of the verbs. Pure functions of the newest states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from lerobot_serve.contract.records import SlotState
from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.tools.dashboard.commands import request as commands
from lerobot_serve.tools.dashboard.commands.request import CommandRequest
from lerobot_serve.tools.operate.commands import robot_rule
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.names import resolve_slot
from lerobot_serve.tools.operate.robots.every_robot import every_robot_rule
from lerobot_serve.tools.operate.rollout.rollouts import finish_rule, parsed_plan, start_rule
from lerobot_serve.tools.operate.rollout.steering import (
    ReadPlan,
    slot_steering_rule,
    split_rule,
    steered_slot,
    steering_rule,
)
from lerobot_serve.tools.operate.rule import Effect, Rule

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
    A command in the state of now: the node it goes to, its rule, and the slot or the robots that
    it concerns.
    """

    node: str
    rule: Rule
    slot: str = ''
    robots: tuple[RobotView, ...] = ()

    @property
    def text(self) -> str:
        """What a person reads and confirms."""
        return self.rule.text


def planned(request: CommandRequest, fleet: FleetStates) -> Planned:
    """Return what the command would do. Raises UserError for a target that is not there."""
    verb = request.verb
    if verb in commands.ROBOT:
        return _of_robot(request, fleet.robot(request.target))
    if verb in commands.EVERY_ROBOT:
        robots = tuple(fleet.robots())
        rule = every_robot_rule(commands.EVERY_ROBOT[verb], robots)
        return Planned('all robots', rule, robots=robots)
    if verb == commands.OUTCOME:
        node = fleet.router_of_episode(request.target)
        text = f'report episode {request.target} as {request.outcome} to {node}'
        return Planned(node, Rule(Effect.DO, text))
    router = fleet.router(request.target)
    if verb == commands.SPLIT:
        return Planned(router.name, split_rule(router, request.share_percent))

    def read_plan() -> CanaryPlan | None:
        return fleet.plan(router.name)

    if verb in commands.LOADING:
        return Planned(router.name, _of_loading(request, router, read_plan))
    if verb in commands.SLOT:
        slot = resolve_slot(request.slot, router)
        if slot.state not in tuple(SlotState.State):
            raise UserError(f'slot {slot.slot} is in a state that this version does not know')
        rule = slot_steering_rule(
            commands.SLOT[verb], slot, router, read_plan, at_once=request.at_once
        )
        return Planned(router.name, rule, slot.slot)
    step = commands.ROLLOUT[verb]
    rule = steering_rule(step, router, read_plan, at_once=request.at_once)
    return Planned(router.name, rule, steered_slot(step, router))


def _of_loading(request: CommandRequest, router: RouterView, read_plan: ReadPlan) -> Rule:
    if request.verb == commands.START:
        return start_rule(router, request.policy, parsed_plan(request.rollout_plan), read_plan)
    return finish_rule(router)


def _of_robot(request: CommandRequest, robot: RobotView) -> Planned:
    return Planned(robot.node, robot_rule(commands.ROBOT[request.verb], robot))


def refusal_text(now: Planned) -> str:
    """Return why a command is refused; empty when it is not."""
    return now.text if now.rule.effect is Effect.REFUSE else ''


def checked_target(found: T | None, node: str, what: str) -> T:
    """Return a target. Raises UserError when it is not there."""
    if found is None:
        raise UserError(
            f'no {what} {node[:80]!r} is heard of; it ended, or the page is old: reload it. '
            'Nothing was changed'
        )
    return found
