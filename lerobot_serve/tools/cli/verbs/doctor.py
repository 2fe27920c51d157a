# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve doctor`: checks machine, policy, robot file and ROS graph."""

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

from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.kind_detection import detect_kind
from lerobot_serve.ros.process.node_runtime import NodeRuntime, UserError
from lerobot_serve.server import assembly
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.cli.verbs.replay import server_parameters
from lerobot_serve.tools.doctor import (
    clocks,
    environment,
    machine,
    policy,
    ros2_control,
    speed,
    topics,
)
from lerobot_serve.tools.doctor import robot as robots
from lerobot_serve.tools.doctor.environment import MiddlewareFacts
from lerobot_serve.tools.doctor.finding import (
    failure,
    Finding,
    FindingGroup,
    FindingLevel,
    skipped,
    worst_level,
)
from lerobot_serve.tools.doctor.node import DoctorNode
from lerobot_serve.tools.doctor.report import as_json, as_text

EXAMPLE = (
    'example: lerobot-serve doctor /models/act --robot my_robot.yaml --parameter trained_fps=30  '
    '| exit status 0 without a failure (warnings allowed), 1 with one, 2 for a wrong command '
    'line'
)
WAIT_S, WAIT_LIMIT_S = 2.0, 60.0
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
NO_ROBOT = 'give --robot FILE to check a robot'
NO_POLICY = 'give POLICY_DIR to check a policy'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        'policy', metavar='POLICY_DIR', nargs='?', default='', help='directory of a policy'
    )
    parser.add_argument('--robot', metavar='FILE', help='robot file, as robot_file of an edge')
    parser.add_argument(
        '--kind',
        default='',
        help='kind of policy: builtin, exported, lerobot or one of another package (detected)',
    )
    parser.add_argument('--device', default='cpu', help='device of the policy (cpu)')
    parser.add_argument(
        '--parameter',
        dest='parameters',
        metavar='NAME=VALUE',
        action='append',
        default=[],
        help='further parameter of the policy_server, for example trained_fps=30',
    )
    parser.add_argument(
        '--namespace',
        type=namespace_argument,
        default='/',
        metavar='NAME',
        help='namespace of the edge_controller, for relative topics (/)',
    )
    parser.add_argument(
        '--wait-s',
        type=seconds_argument,
        default=WAIT_S,
        metavar='S',
        help=f'how long to wait for topics and nodes [s] ({WAIT_S:g})',
    )
    parser.add_argument('--json', action='store_true', help='print one object')


def main(options: argparse.Namespace) -> int:
    """Return 0, or 1 when a check fails. Raises ParameterError for a wrong --parameter."""
    with stdout_to_stderr():
        groups = run_checks(options)
    if options.json:
        print(json.dumps(as_json(groups), indent=2))
    else:
        print(as_text(groups, coloured=sys.stdout.isatty()))
    return 1 if worst_level(groups) is FindingLevel.FAILURE else 0


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect the output of middleware and libraries to standard error."""
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
class GraphFindings:
    """Findings about the ROS graph."""

    middleware: MiddlewareFacts = field(default_factory=MiddlewareFacts)
    topics: list[Finding] = field(default_factory=list)
    ros2_control: list[Finding] = field(default_factory=list)


def run_checks(options: argparse.Namespace) -> list[FindingGroup]:
    """Return all findings. Raises ParameterError."""
    before, host = clocks.read_clocks(), machine.read_machine()
    # refuses a wrong --parameter before the slow checks
    kind, unknown = kind_of(options)
    parameters = server_parameters(argparse.Namespace(**{**vars(options), 'kind': kind}))
    robot, of_file = robots.check_robot_file(options.robot) if options.robot else (None, [])
    graph = query_graph(host, robot, options)
    examined, agreement, capacity = policy_findings(
        parameters, robot, unknown, wanted=is_policy_requested(options)
    )
    surroundings = environment.check_environment(
        host, graph.middleware, kind if is_policy_requested(options) else ''
    )
    no_robot = [skipped('robot', NO_ROBOT)]
    return [
        FindingGroup(
            'environment', (*surroundings, *clocks.check_clocks(before, clocks.read_clocks()))
        ),
        FindingGroup('policy', tuple(examined)),
        FindingGroup('robot', tuple((of_file + agreement) or no_robot)),
        FindingGroup('topics', tuple(graph.topics)),
        FindingGroup('ros2_control', tuple(graph.ros2_control)),
        FindingGroup('capacity', tuple(capacity)),
    ]


def is_policy_requested(options: argparse.Namespace) -> bool:
    """Return whether the command line names a policy."""
    return bool(options.policy or options.kind)


def kind_of(options: argparse.Namespace) -> tuple[str, list[Finding]]:
    """Return the kind of the policy, and the finding when it is unknown."""
    if options.kind or not options.policy:
        return options.kind, []
    try:
        return detect_kind(options.policy), []
    except PolicyError as error:
        how = 'give the directory that the training wrote; ' + policy.PAGE
        return '', [failure(policy.LOADS, str(error), how)]


def policy_findings(
    parameters: ServerParameters,
    robot: RobotDescription | None,
    unknown: list[Finding],
    *,
    wanted: bool,
) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Return the findings on the policy, on its match with the robot, and on capacity."""
    if not wanted:
        return [skipped('policy', NO_POLICY)], [], [skipped('capacity', NO_POLICY)]
    if unknown:
        return unknown, [], [skipped('capacity', 'the policy cannot be used')]
    parameters, taken = policy.with_robot_names(robot, parameters)
    examined = policy.examine_policy(parameters)
    findings = [*policy.training_findings(parameters), *examined.findings]
    pace = examined.pace(robot)
    if not (examined.served and pace):
        return findings, [], [skipped('capacity', 'the policy cannot be used')]
    agreement = (
        robots.check_agreement(robot, examined.served, assembly.session_rules(parameters), taken)
        if robot
        else []
    )
    capacity = speed.check_capacity(
        pace,
        exclusive=policy.is_exclusive(examined.served),
        network_s=parameters.network_round_trip_ms / 1e3,
    )
    return [*findings, speed.check_forward_time(pace)], agreement, [capacity]


def query_graph(
    host: machine.MachineFacts, robot: RobotDescription | None, options: argparse.Namespace
) -> GraphFindings:
    """Check the ROS graph with a node of its own; skipped for an invalid ROS_DOMAIN_ID."""
    if environment.domain(host.variables.get('ROS_DOMAIN_ID', '')).verdict is FindingLevel.FAILURE:
        return graph_unavailable('see ROS_DOMAIN_ID')
    try:
        runtime = NodeRuntime([])
    except UserError as error:
        return graph_unavailable(str(error))
    try:
        node = DoctorNode(runtime, options.namespace, options.wait_s)
        runtime.executor.add_node(node)
        runtime.start()
        return check_graph(node, robot)
    finally:
        runtime.close()


def check_graph(node: DoctorNode, robot: RobotDescription | None) -> GraphFindings:
    graph = GraphFindings(node.middleware())
    subscribers: tuple[str, ...] = ()
    if robot is None:
        graph.topics = [skipped('topics', 'no robot file lists the topics')]
    else:
        graph.topics = [topics.check_input(heard) for heard in node.sample_inputs(robot)]
        commands = node.command_topic(robot)
        graph.topics += topics.check_commands(commands)
        subscribers = tuple(end.node for end in commands.subscribers)
    graph.ros2_control = ros2_control.check_controllers(
        node.controller_managers(subscribers), robot
    )
    return graph


def graph_unavailable(error: str) -> GraphFindings:
    nothing = [skipped('ROS', 'it does not start')]
    return GraphFindings(MiddlewareFacts(error=error), nothing, nothing)


def namespace_argument(words: str) -> str:
    """Raises ArgumentTypeError."""
    name = '/' + words.strip('/')
    try:
        validate_namespace(name)
    except InvalidNamespaceException:
        text = f'must be like /robot_1, of letters, digits and single _, got {words!r}'
        raise argparse.ArgumentTypeError(text) from None
    return name


def seconds_argument(words: str) -> float:
    """Raises ArgumentTypeError."""
    try:
        number = float(words)
    except ValueError:
        number = float('nan')
    if not (isfinite(number) and 0 < number <= WAIT_LIMIT_S):
        raise argparse.ArgumentTypeError(f'must be in (0, {WAIT_LIMIT_S:g}] s, got {words}')
    return number
