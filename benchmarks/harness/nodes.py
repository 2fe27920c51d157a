# SPDX-License-Identifier: Apache-2.0
"""Policy servers and routers in processes of their own, and a swarm of robots. Main thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
from pathlib import Path
import subprocess
from typing import TypeVar

from rcl_interfaces.srv import SetParameters
from rclpy.node import Node
from rclpy.parameter import Parameter

from benchmarks.harness.client import READY_TIMEOUT_S, SERVER
from benchmarks.harness.load_generator import LoadGenerator
from benchmarks.harness.processes import child, node_command, wait_until
from lerobot_serve.errors import UserError
from lerobot_serve.ros.contract.service_call import call_service, ServiceCallFailed
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve_interfaces.srv import GetStatus

NodeT = TypeVar('NodeT', bound=SteadyClockNode)


@contextlib.contextmanager
def spinning(build: Callable[[NodeRuntime], NodeT]) -> Iterator[NodeT]:
    """Build a node, and run its callbacks in a background thread until the end."""
    with spinning_all(lambda runtime: [build(runtime)]) as (node,):
        yield node


@contextlib.contextmanager
def spinning_all(build: Callable[[NodeRuntime], Sequence[NodeT]]) -> Iterator[Sequence[NodeT]]:
    """Build nodes, and run their callbacks in a background thread until the end."""
    with contextlib.closing(NodeRuntime([])) as runtime:
        nodes = build(runtime)
        for node in nodes:
            runtime.add(node)
        runtime.spin_in_background()
        yield nodes


def spinning_node(name: str) -> contextlib.AbstractContextManager[SteadyClockNode]:
    """Give a node whose callbacks run in a background thread."""
    return spinning(lambda runtime: SteadyClockNode(name, context=runtime.context))


@contextlib.contextmanager
def serve(parameters: dict[str, object], folder: Path) -> Iterator[LoadGenerator]:
    """Start a server, and give robots for it once it serves. Raises UserError."""
    with (
        spinning(LoadGenerator) as swarm,
        running(swarm, 'policy_server', SERVER, parameters, folder),
    ):
        yield swarm


@contextlib.contextmanager
def running(
    node: Node,
    executable: str,
    server: str,
    parameters: dict[str, object],
    folder: Path,
    under: Sequence[str] = (),
) -> Iterator[subprocess.Popen]:
    """
    Start a policy server or router under the name `server`, and give its process once it
    serves; the executor of `node` spins. `under` is a command that runs it. Raises UserError.
    """
    name = server[1:]
    with child(
        [*under, *node_command(executable, parameters, name)], folder / f'{name}.log'
    ) as process:
        wait_until_active(node, server, process)
        yield process


def wait_until_active(node: Node, server: str, process: subprocess.Popen) -> None:
    """Return once a node serves. Raises UserError."""
    client = node.create_client(GetStatus, f'{server}/get_status')

    def is_active() -> bool:
        # an answer that is sent before the two have fully found each other is lost
        with contextlib.suppress(ServiceCallFailed):
            status = call_service(client, GetStatus.Request(), 2.0).status
            return status.state == status.ACTIVE
        return False

    try:
        otherwise = f'{server} did not come up; see {server[1:]}.log'
        wait_until(is_active, otherwise, READY_TIMEOUT_S, process)
    finally:
        node.destroy_client(client)


def set_parameter(node: Node, server: str, parameter: Parameter) -> None:
    """Change a parameter of a server or router; the executor of `node` spins. Raises UserError."""
    client = node.create_client(SetParameters, f'{server}/set_parameters')
    request = SetParameters.Request(parameters=[parameter.to_parameter_msg()])
    (result,) = call_service(client, request, READY_TIMEOUT_S).results
    node.destroy_client(client)
    if not result.successful:
        raise UserError(f'{parameter.name} was not changed: {result.reason}')
