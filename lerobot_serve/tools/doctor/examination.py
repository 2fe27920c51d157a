# SPDX-License-Identifier: Apache-2.0
"""
Runs all checks of the doctor and groups the findings. The caller's thread; the node that queries
the ROS graph spins in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.errors import UserError
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.lerobot.hub import local_folder
from lerobot_serve.policies.registry import detect_kind
from lerobot_serve.requirements import FROM_ROS
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.doctor import environment, machine, policy, ros2_control, topics
from lerobot_serve.tools.doctor import robot as robots
from lerobot_serve.tools.doctor.environment import MiddlewareFacts
from lerobot_serve.tools.doctor.finding import (
    failure,
    Finding,
    FindingLevel,
    Groups,
    skipped,
)
from lerobot_serve.tools.doctor.link import check_link, probe_link
from lerobot_serve.zenoh.settings import ZenohSettings

if TYPE_CHECKING:
    from lerobot_serve.tools.doctor.node import DoctorNode

NO_ROBOT = 'give --robot FILE to check a robot'
NO_POLICY = 'give POLICY_DIR to check a policy'


@dataclass(frozen=True, slots=True)
class ExaminationRequest:
    """
    The subjects of an examination.

    parameters   of the policy_server; None without a policy to check
    unknown      the finding if the kind of the policy is unknown
    robot_file   empty without a robot to check
    namespace    of the edge_controller; wait_s is the time limit for topics and nodes
    link         settings of a Zenoh link; link_client is the name in the keys of its queries,
                 and link_servers are those that access control would hide
    """

    parameters: ServerParameters | None = None
    unknown: tuple[Finding, ...] = ()
    robot_file: str = ''
    namespace: str = '/'
    wait_s: float = 2.0
    link: ZenohSettings = field(default_factory=ZenohSettings)
    link_client: str = ''
    link_servers: tuple[str, ...] = ()


def run_checks(request: ExaminationRequest) -> Groups:
    """Return all findings."""
    before, host = machine.read_clocks(), machine.read_machine()
    robot, of_file = (
        robots.check_robot_file(request.robot_file) if request.robot_file else (None, [])
    )
    middleware, of_graph = query_graph(host, robot, request)
    over_zenoh = probe_link(
        request.link, request.link_client, request.wait_s, request.link_servers
    )
    examined = policy_findings(request, robot)
    kind = request.parameters.policy_kind if request.parameters else ''
    machine_findings = environment.check_environment(host, middleware, kind)
    clocks = machine.check_clocks(before, machine.read_clocks())
    return {
        'environment': [*machine_findings, *clocks],
        'policy': examined['policy'],
        'robot': [*of_file, *examined['agreement']] or [skipped('robot', NO_ROBOT)],
        **of_graph,
        'link': check_link(over_zenoh),
        'capacity': examined['capacity'],
    }


def find_folder(path: str, kind: str) -> tuple[str, tuple[Finding, ...]]:
    """Return the folder of a policy, downloaded from the hub if it is there, or a finding."""
    if kind not in ('', 'lerobot'):
        return path, ()
    try:
        return local_folder(path), ()
    except PolicyError as error:
        return '', (failure(policy.LOADS, str(error), policy.PAGE),)


def find_kind(folder: str) -> tuple[str, tuple[Finding, ...]]:
    """Return the kind of the policy in a folder, and a finding if it is unknown."""
    try:
        return detect_kind(folder), ()
    except PolicyError as error:
        how = 'give the directory written by the training; ' + policy.PAGE
        return '', (failure(policy.LOADS, str(error), how),)


def policy_findings(request: ExaminationRequest, robot: RobotDescription | None) -> Groups:
    """Load the policy and check it, its match with the robot, and the capacity of a server."""
    parameters = request.parameters
    if parameters is None:
        return _groups([skipped('policy', NO_POLICY)], [], skipped('capacity', NO_POLICY))
    unusable = skipped('capacity', 'the policy cannot be used')
    if request.unknown:
        return _groups(request.unknown, [], unusable)
    parameters, taken = policy.with_robot_names(robot, parameters)
    examined = policy.examine_policy(parameters)
    findings = [*policy.training_findings(parameters), *examined.findings]
    pace = examined.pace(robot)
    if not (examined.served and pace):
        return _groups(findings, [], unusable)
    agreement = robots.check_agreement(robot, examined.served, parameters, taken) if robot else []
    capacity = machine.check_capacity(
        pace,
        exclusive=policy.is_exclusive(examined.served),
        network_s=parameters.network_round_trip_ms / 1e3,
    )
    return _groups([*findings, machine.check_forward_time(pace)], agreement, capacity)


def _groups(findings: Sequence[Finding], agreement: list[Finding], capacity: Finding) -> Groups:
    return {'policy': findings, 'agreement': agreement, 'capacity': [capacity]}


def query_graph(
    host: machine.MachineFacts, robot: RobotDescription | None, request: ExaminationRequest
) -> tuple[MiddlewareFacts, Groups]:
    """Check the ROS graph with a temporary node; skipped for an invalid ROS_DOMAIN_ID."""
    if environment.domain(host.variables.get('ROS_DOMAIN_ID', '')).verdict is FindingLevel.FAILURE:
        return graph_unavailable('see ROS_DOMAIN_ID')
    if host.missing.intersection(FROM_ROS):
        return graph_unavailable('it is not complete here')
    # without ROS all other checks run
    from lerobot_serve.ros.process.node_runtime import NodeRuntime
    from lerobot_serve.tools.doctor.node import DoctorNode

    try:
        runtime = NodeRuntime([])
    except UserError as error:
        return graph_unavailable(str(error))
    try:
        node = DoctorNode(runtime, request.namespace, request.wait_s)
        runtime.executor.add_node(node)
        runtime.start()
        return check_graph(node, robot)
    finally:
        runtime.close()


def check_graph(
    node: DoctorNode, robot: RobotDescription | None
) -> tuple[MiddlewareFacts, Groups]:
    middleware = node.middleware()
    subscribers: tuple[str, ...] = ()
    of_topics = [skipped('topics', 'no robot file lists the topics')]
    if robot:
        of_topics = [topics.check_input(heard) for heard in node.sample_inputs(robot)]
        commands = node.command_topic(robot)
        of_topics += topics.check_commands(commands)
        subscribers = tuple(end.node for end in commands.subscribers)
    managers = node.controller_managers(subscribers)
    of_control = ros2_control.check_controllers(managers, robot)
    return middleware, {'topics': of_topics, 'ros2_control': of_control}


def graph_unavailable(error: str) -> tuple[MiddlewareFacts, Groups]:
    nothing = [skipped('ROS', 'ROS does not start')]
    return MiddlewareFacts(error=error), {'topics': nothing, 'ros2_control': nothing}
