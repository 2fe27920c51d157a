"""`lerobot-serve doctor`: what is wrong with machine, policy and robot, and what to do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import contextlib
from dataclasses import dataclass, field
import json
from math import isfinite
import os
import sys

from rclpy.exceptions import InvalidNamespaceException
from rclpy.validate_namespace import validate_namespace

from lerobot_serve.cli.replay import server_parameters
from lerobot_serve.doctor import clocks, control, environment, machine, policy, speed, topics
from lerobot_serve.doctor import robot as robots
from lerobot_serve.doctor.environment import Middleware
from lerobot_serve.doctor.finding import failure, Finding, Group, skipped, Verdict, worst
from lerobot_serve.doctor.node import Doctor
from lerobot_serve.doctor.report import as_json, as_text
from lerobot_serve.edge.robot.description import Robot
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.kinds import find_kind
from lerobot_serve.ros.runtime import Runtime, UserError
from lerobot_serve.server import preparation
from lerobot_serve.server.parameters import ServerParameters

EXAMPLE = (
    'example: lerobot-serve doctor /models/act --robot my_robot.yaml --parameter trained_fps=30  '
    '| ends with 0 when all is well or there are warnings only, 1 when something fails, 2 for a '
    'wrong command line'
)
WAIT_S, WAIT_LIMIT_S = 2.0, 60.0
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
NO_ROBOT = 'give --robot FILE to look at a robot'
NO_POLICY = 'give POLICY_DIR to look at a policy'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'policy', metavar='POLICY_DIR', nargs='?', default='', help='directory of a policy'
    )
    parser.add_argument('--robot', metavar='FILE', help='robot file, as robot_file of an edge')
    parser.add_argument(
        '--kind',
        default='',
        help='kind of policy: builtin, exported, lerobot or one of another package (found out)',
    )
    parser.add_argument('--device', default='cpu', help='where the policy runs (cpu)')
    parser.add_argument(
        '--parameter',
        dest='parameters',
        metavar='NAME=VALUE',
        action='append',
        default=[],
        help='another parameter that the policy_server will have, for example trained_fps=30',
    )
    parser.add_argument(
        '--namespace',
        type=a_namespace,
        default='/',
        metavar='NAME',
        help='namespace of the edge_controller, in which relative topics lie (/)',
    )
    parser.add_argument(
        '--wait-s',
        type=seconds,
        default=WAIT_S,
        metavar='S',
        help=f'how long topics and nodes are waited for [s] ({WAIT_S:g})',
    )
    parser.add_argument('--json', action='store_true', help='print one object')


def main(options: argparse.Namespace) -> int:
    """Return 0, or 1 when something fails. Raises ParameterError for a wrong --parameter."""
    with output_kept_clean():
        groups = look(options)
    if options.json:
        print(json.dumps(as_json(groups), indent=2))
    else:
        print(as_text(groups, coloured=sys.stdout.isatty()))
    return 1 if worst(groups) is Verdict.FAILURE else 0


@contextlib.contextmanager
def output_kept_clean() -> Iterator[None]:
    """Let what the middleware and libraries print meanwhile go to standard error."""
    sys.stdout.flush()
    kept = os.dup(STANDARD_OUTPUT)
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, STANDARD_OUTPUT)
        os.close(kept)


@dataclass(slots=True)
class Seen:
    """What was found on the graph of ROS."""

    middleware: Middleware = field(default_factory=Middleware)
    topics: list[Finding] = field(default_factory=list)
    control: list[Finding] = field(default_factory=list)


def look(options: argparse.Namespace) -> list[Group]:
    """Return all findings. Raises ParameterError."""
    before, host = clocks.read(), machine.look()
    # a wrong --parameter is told before anything takes time
    kind, unknown = kind_of(options)
    parameters = server_parameters(argparse.Namespace(**{**vars(options), 'kind': kind}))
    robot, of_file = robots.read(options.robot) if options.robot else (None, [])
    seen = on_the_graph(host, robot, options)
    examined, agreement, capacity = of_policy(parameters, robot, unknown, wanted=wanted(options))
    surroundings = environment.check(host, seen.middleware, kind if wanted(options) else '')
    no_robot = [skipped('robot', NO_ROBOT)]
    return [
        Group('environment', (*surroundings, *clocks.check(before, clocks.read()))),
        Group('policy', tuple(examined)),
        Group('robot', tuple((of_file + agreement) or no_robot)),
        Group('topics', tuple(seen.topics)),
        Group('ros2_control', tuple(seen.control)),
        Group('capacity', tuple(capacity)),
    ]


def wanted(options: argparse.Namespace) -> bool:
    """Return whether a policy is to be looked at."""
    return bool(options.policy or options.kind)


def kind_of(options: argparse.Namespace) -> tuple[str, list[Finding]]:
    """Return the kind of the policy, and why it is not known."""
    if options.kind or not options.policy:
        return options.kind, []
    try:
        return find_kind(options.policy), []
    except PolicyError as error:
        how = 'give the directory that the training wrote; ' + policy.PAGE
        return '', [failure(policy.LOADS, str(error), how)]


def of_policy(
    parameters: ServerParameters, robot: Robot | None, unknown: list[Finding], *, wanted: bool
) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Return what is told of the policy, of it and the robot, and of capacity."""
    if not wanted:
        return [skipped('policy', NO_POLICY)], [], [skipped('capacity', NO_POLICY)]
    if unknown:
        return unknown, [], [skipped('capacity', 'the policy cannot be used')]
    parameters, taken = policy.with_names_of(robot, parameters)
    examined = policy.examine(parameters)
    findings = [*policy.about_training(parameters), *examined.findings]
    pace = examined.pace(robot)
    if not (examined.served and pace):
        return findings, [], [skipped('capacity', 'the policy cannot be used')]
    agreement = (
        robots.agreement(robot, examined.served, preparation.rules(parameters), taken)
        if robot
        else []
    )
    capacity = speed.robots(
        pace,
        exclusive=policy.is_exclusive(examined.served),
        network_s=parameters.network_ms / 1e3,
    )
    return [*findings, speed.fast_enough(pace)], agreement, [capacity]


def on_the_graph(host: machine.Machine, robot: Robot | None, options: argparse.Namespace) -> Seen:
    """Return what a node of our own sees; ROS is not started in a domain that it cannot have."""
    if environment.domain(host.variables.get('ROS_DOMAIN_ID', '')).verdict is Verdict.FAILURE:
        return not_seen('see ROS_DOMAIN_ID')
    try:
        runtime = Runtime([])
    except UserError as error:
        return not_seen(str(error))
    try:
        node = Doctor(runtime, options.namespace, options.wait_s)
        runtime.executor.add_node(node)
        runtime.start()
        return ask(node, robot)
    finally:
        runtime.close()


def ask(node: Doctor, robot: Robot | None) -> Seen:
    seen = Seen(node.middleware())
    takers: tuple[str, ...] = ()
    if robot is None:
        seen.topics = [skipped('topics', 'no robot file tells which there are')]
    else:
        seen.topics = [topics.judge(heard) for heard in node.listen(robot)]
        told = node.commands(robot)
        seen.topics += topics.judge_commands(told)
        takers = tuple(end.node for end in told.takers)
    seen.control = control.judge(node.managers(takers), robot)
    return seen


def not_seen(error: str) -> Seen:
    nothing = [skipped('ROS', 'it does not start')]
    return Seen(Middleware(error=error), nothing, nothing)


def a_namespace(words: str) -> str:
    """Raises ArgumentTypeError."""
    name = '/' + words.strip('/')
    try:
        validate_namespace(name)
    except InvalidNamespaceException:
        text = f'must be like /robot_1, of letters, digits and single _, got {words!r}'
        raise argparse.ArgumentTypeError(text) from None
    return name


def seconds(words: str) -> float:
    """Raises ArgumentTypeError."""
    try:
        number = float(words)
    except ValueError:
        number = float('nan')
    if not (isfinite(number) and 0 < number <= WAIT_LIMIT_S):
        raise argparse.ArgumentTypeError(f'must be in (0, {WAIT_LIMIT_S:g}] s, got {words}')
    return number
