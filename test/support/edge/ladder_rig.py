# SPDX-License-Identifier: Apache-2.0
"""Robots and a small world for ladders: the cage lets everything through."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from math import inf

import numpy as np

from lerobot_serve.cage.description import ActionLimit, LastCommand, Motion
from lerobot_serve.edge.control.authority import (
    ActionSupply,
    AllowedMotion,
    AuthorityInputs,
    grant_motion,
    JointMotion,
    MotionGrant,
    OperatingConditions,
)
from lerobot_serve.edge.control.ladder import Ladder, LadderDecision
from lerobot_serve.edge.control.rungs import Rung, RungKind
from lerobot_serve.edge.robot.description import CommandOutput, RobotDescription
from lerobot_serve.edge.session.connection import ConnectionState

S = 1_000_000_000
STEP_S = 0.02
STEP_NS = 20_000_000
POSITION, VELOCITY = Motion.POSITION, Motion.VELOCITY


def robot_of(
    *motions: Motion, safe_pose: tuple[float, ...] | None = None, max_acceleration: float = inf
) -> RobotDescription:
    actions = tuple(
        ActionLimit(f'a{i}', f'j{i}', motion, -2.0, 2.0, 0.05, max_acceleration=max_acceleration)
        for i, motion in enumerate(motions)
    )
    command = CommandOutput('std_msgs/Float64MultiArray', 'command')
    return RobotDescription('robot', 1 / STEP_S, (), (), actions, command, safe_pose=safe_pose)


ARM = robot_of(POSITION, POSITION, safe_pose=(0.5, -0.5))
BASE = robot_of(VELOCITY, VELOCITY)
MIXED = robot_of(POSITION, VELOCITY, safe_pose=(0.5, 0.0))


def rungs(text: str) -> tuple[Rung, ...]:
    """Return the rungs of 'ramp 0.5, hold'."""
    parts = [part.split() for part in text.split(', ')]
    return tuple(Rung(RungKind[p[0].upper()], *map(float, p[1:])) for p in parts)


@dataclass
class World:
    """Steps a ladder and remembers what was commanded."""

    ladder: Ladder
    columns: int = 2
    now_ns: int = 5 * S
    last: LastCommand | None = None
    seen: list[LadderDecision] = field(default_factory=list)
    orders: OperatingConditions = field(default_factory=OperatingConditions)
    is_silent_while_paused: bool = False
    is_velocity: np.ndarray | None = None

    def step(
        self,
        action: np.ndarray | None = None,
        rows_left: int | None = None,
        *,
        cleared: bool = False,
    ) -> LadderDecision:
        """Take one step with so many rows buffered; one row when there is an action."""
        rows = rows_left if rows_left is not None else int(action is not None)
        fresh = action is not None and self.ladder.plays(rows)
        grant = self.granted(fresh=fresh)
        planned = action if grant.allowed is AllowedMotion.PLAY else None
        decision = self.ladder.step(grant, planned, rows, self.now_ns, self.last, cleared=cleared)
        if decision.wanted is None:
            self.last = None
            self.ladder.reset()
        else:
            before = self.last or LastCommand(decision.wanted, np.zeros(self.columns))
            self.last = before.after(decision.wanted, STEP_S)
        self.now_ns += STEP_NS
        self.seen.append(decision)
        return decision

    def granted(self, *, fresh: bool) -> MotionGrant:
        """Return what the table says."""
        ladder = self.ladder
        given = AuthorityInputs(
            self.orders,
            stopped=ladder.stopped,
            is_silent_while_paused=self.is_silent_while_paused,
            teardown=ladder.teardown,
            joints=joints_of(self.last, self.is_velocity),
            supply=ActionSupply.FRESH if fresh else ladder.supply,
        )
        return grant_motion(given)

    def be(self, **orders: object) -> None:
        """Change what is decided outside of the control step."""
        self.orders = self.orders._replace(**orders)
        if self.orders.state is not ConnectionState.DEAD:
            self.ladder.reset_teardown()

    def play(self, *values: float) -> None:
        """Play actions that move all joints alike."""
        for value in values or (0.0, 0.02):
            assert self.step(np.full(self.columns, value), 99).kind is RungKind.POLICY

    def dry(self, seconds: float) -> list[LadderDecision]:
        return [self.step() for _ in range(round(seconds / STEP_S))]


def is_velocity(robot: RobotDescription) -> np.ndarray:
    return np.array([action.motion is VELOCITY for action in robot.actions])


def joints_of(last: LastCommand | None, velocities: np.ndarray) -> JointMotion:
    if last is None:
        return JointMotion.SILENT
    speed = np.where(velocities, last.position, last.velocity)
    return JointMotion.MOVING if (abs(speed) > 1e-9).any() else JointMotion.AT_REST


def world(
    text: str,
    robot: RobotDescription = ARM,
    resume_rows: int = 3,
    *,
    teardown: str = '',
    has_stop_service: bool = True,
) -> World:
    ladder = Ladder(
        rungs(text),
        robot,
        step_s=STEP_S,
        resume_rows=resume_rows,
        teardown=rungs(teardown) if teardown else (),
        has_stop_service=has_stop_service,
    )
    return World(ladder, len(robot.actions), is_velocity=is_velocity(robot))


def kinds(decisions):
    """Return the rungs in their order, each with its number of steps."""
    return [
        (kind.name.lower(), len(list(group))) for kind, group in groupby(d.kind for d in decisions)
    ]
