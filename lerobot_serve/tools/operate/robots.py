# SPDX-License-Identifier: Apache-2.0
"""
The robots of a fleet as a table, the worst first; and pause or resume all of them, each in a
thread of its own: a robot that hangs delays no other one.

The caller's thread waits for all of them. Each call has the limits of the client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TYPE_CHECKING

from lerobot_serve.contract.records import EdgeState
from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate.commands import robot_rule
from lerobot_serve.tools.operate.fleet_state import RobotView, shown, SILENT
from lerobot_serve.tools.operate.names import listed, natural_order
from lerobot_serve.tools.operate.operations import run_robot_verb
from lerobot_serve.tools.operate.outcome import EXIT_UNKNOWN, PartlyDone, ResultUnknown
from lerobot_serve.tools.operate.rule import Effect, RobotVerb, Rule
from lerobot_serve.tools.output.report import Report, Table

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient


EVERY_VERBS = (RobotVerb.PAUSE, RobotVerb.RESUME)
# threads; each waits for its robot nearly all the time
AT_ONCE = 256
EXIT_REFUSED = 1
PAUSE_EVERY = Rule(Effect.DO, 'slow every robot down to rest and hold it there')


@dataclass(frozen=True, slots=True)
class RobotResult:
    """What is true of one robot after a verb on all; `exit_status` as that of the verb on one."""

    name: str
    node: str
    exit_status: int
    text: str


Show = Callable[[RobotResult], object]


def every_robot_rule(verb: RobotVerb, robots: Iterable[RobotView]) -> Rule:
    """Return the rule of a verb on all robots. A pause goes to each one, whatever its state."""
    if verb is RobotVerb.PAUSE:
        return PAUSE_EVERY
    names = [robot.name for robot in robots if robot_rule(verb, robot).effect is Effect.DO]
    if not names:
        return Rule(Effect.NOTHING, 'no robot that is heard of is paused')
    # all of them: who confirms this must have read the name of each
    named = ', '.join(sorted(names, key=natural_order))
    text = f'end the pause of {named}: they may move at once'
    return Rule(Effect.DO, text, asks=True)


def pause_every_robot(
    client: FleetClient, nodes: Iterable[str], reason: str, show: Show
) -> list[RobotResult]:
    """
    Pause the robots `nodes`, and each other one as soon as it is found. `show` gets each result
    at once, in the order in which they arrive. Raises UserError without any robot.
    """
    with ThreadPoolExecutor(AT_ONCE, 'robot') as pool:
        begun: dict[str, Future[RobotResult]] = {}

        def begin(node: str) -> None:
            if node not in begun:
                robot = RobotView(node)
                begun[node] = pool.submit(_run, client, robot, RobotVerb.PAUSE, reason)

        for node in nodes:
            begin(node)
        client.find_robot_nodes(begin)
        if not begun:
            raise UserError(client.no_robot_text)
        return _collect(begun.values(), show)


def resume_every_robot(
    client: FleetClient, robots: Iterable[RobotView], reason: str, show: Show
) -> list[RobotResult]:
    """End the pause of those that are paused; those that send nothing are refused."""
    with ThreadPoolExecutor(AT_ONCE, 'robot') as pool:
        return _collect(
            [pool.submit(_run, client, robot, RobotVerb.RESUME, reason) for robot in robots],
            show,
        )


def exit_status(results: list[RobotResult]) -> int:
    """Return 0 when all are done, 4 when some are; else 3 when one was sent and not confirmed."""
    statuses = {result.exit_status for result in results}
    if statuses <= {0}:
        return 0
    if 0 in statuses:
        return PartlyDone.exit_status
    return EXIT_UNKNOWN if EXIT_UNKNOWN in statuses else EXIT_REFUSED


def summary(verb: RobotVerb, results: list[RobotResult]) -> str:
    """Return how many robots a verb reached, and the names of the others."""
    others = sorted((r.name for r in results if r.exit_status), key=natural_order)
    reached = f'{verb.value}: {len(results) - len(others)} of {len(results)} robots confirm it'
    return f'{reached}; not {listed(others)}' if others else reached


def _collect(begun: Iterable[Future[RobotResult]], show: Show) -> list[RobotResult]:
    results = []
    for future in as_completed(begun):
        results.append(future.result())
        show(results[-1])
    return sorted(results, key=lambda result: natural_order(result.name))


def _run(client: FleetClient, robot: RobotView, verb: RobotVerb, reason: str) -> RobotResult:
    """Run the verb on one robot. A thread of the pool."""
    rule = robot_rule(verb, robot)
    if rule.effect is not Effect.DO:
        is_refused = rule.effect is Effect.REFUSE
        return RobotResult(robot.name, robot.node, EXIT_REFUSED * is_refused, rule.text)
    try:
        text, status = run_robot_verb(client, robot, verb, reason).text, 0
    except UserError as error:
        text, status = str(error), EXIT_REFUSED
    except ResultUnknown as unknown:
        text, status = str(unknown), EXIT_UNKNOWN
    return RobotResult(robot.name, robot.node, status, text)


# a state of a newer edge
UNKNOWN_SEVERITY = 1
# worst first: a robot of which nothing is known now, one that needs an operator, one without
# actions, one that moves
SEVERITY = {
    SILENT: -1,
    'DEAD': 0,
    'STALLED': 2,
    'RECONNECTING': 3,
    'CONNECTING': 4,
    'DEGRADED': 5,
    'STREAMING': 6,
}
# of the rung; one that only an operator lifts comes before every state
STOPPED_RUNGS = (EdgeState.Rung.STOP_SERVICE, EdgeState.Rung.NO_COMMAND)
MOVING_RUNG = EdgeState.Rung.POLICY
HEADS = ('ROBOT', 'STATE', 'RUNG', 'SLOT', 'POLICY', 'EPISODE', 'QUEUE', 'ROUND TRIP', 'REASON')

# of EdgeState, in the order of JSON
FIELDS = (
    *('client_id', 'state', 'rung', 'paused', 'intervention', 'reason', 'server', 'slot'),
    *('policy', 'episode_id', 'task', 'queue_remaining_s', 'action_age_s', 'round_trip_ms'),
    *('stalls', 'cage_trips'),
)
# measured values of a robot, which are old when it is silent
MEASURED = ('queue_remaining_s', 'action_age_s', 'round_trip_ms')


def severity(robot: RobotView) -> tuple[object, ...]:
    """
    Return the sort key, worst first: silent, stopped by a rung, state, not on the policy, stalls,
    name.
    """
    return (
        not robot.is_silent,
        not is_stopped(robot),
        SEVERITY.get(robot.state, UNKNOWN_SEVERITY),
        robot.edge.rung == MOVING_RUNG,
        -(robot.edge.stalls + robot.edge.cage_trips),
        natural_order(robot.name),
    )


def is_stopped(robot: RobotView) -> bool:
    """Return whether only an operator lifts what stops it; one that is paused has no fault."""
    return robot.edge.rung in STOPPED_RUNGS and not robot.edge.paused and not robot.is_silent


def worst_first(robots: Iterable[RobotView]) -> list[RobotView]:
    """Return the robots in the order in which an operator looks at them."""
    return sorted(robots, key=severity)


def robots_report(robots: Iterable[RobotView]) -> Report:
    """Return the table and the counts, worst first; what is measured is null of a silent robot."""
    ordered = worst_first(robots)
    table = Table(HEADS, [_row(robot) for robot in ordered])
    return Report({'robots': [_object(each) for each in ordered]}, [table, _counts(ordered)])


def _object(robot: RobotView) -> dict[str, Any]:
    found = {'name': robot.name, 'node': robot.node, **shown(robot.edge, *FIELDS)}
    found |= {'state': robot.state, 'age_s': robot.age_s}
    return found | dict.fromkeys((*MEASURED, 'rung')) if robot.is_silent else found


def _row(robot: RobotView) -> tuple[str, ...]:
    is_silent = robot.is_silent
    return (
        robot.name,
        _state(robot),
        '-' if is_silent else robot.edge.rung.word,
        robot.edge.slot or '-',
        robot.edge.policy or '-',
        robot.edge.episode_id or '-',
        '-' if is_silent else f'{robot.edge.queue_remaining_s:.1f} s',
        '-' if is_silent else f'{robot.edge.round_trip_ms:.0f} ms',
        robot.edge.reason,
    )


def _state(robot: RobotView) -> str:
    if robot.is_silent:
        return robot.state
    if robot.edge.paused:
        return f'{robot.state} (paused)'
    if is_stopped(robot):
        return f'{robot.state} (stopped)'
    return (
        robot.state
        if robot.edge.intervention is EdgeState.Intervention.NONE
        else f'{robot.state} (taken over)'
    )


def _counts(robots: Sequence[RobotView]) -> str:
    counts = Counter(map(_state, robots))
    parts = [f'{count} {state}' for state, count in counts.items()]
    return f'{len(robots)} robots: {", ".join(parts)}'
