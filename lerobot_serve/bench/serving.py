"""A policy_server in a process of its own, and a swarm of robots beside it. Main thread."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass
from pathlib import Path
import subprocess
import time

from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter

from lerobot_serve.bench.children import child
from lerobot_serve.bench.client import READY_TIMEOUT_S, SERVER
from lerobot_serve.bench.swarm import Swarm
from lerobot_serve.cli.processes import executable_path
from lerobot_serve.ros.calls import call
from lerobot_serve.ros.runtime import Runtime, UserError
from lerobot_serve_interfaces.srv import GetStatus


@dataclass(frozen=True, slots=True)
class ServedSwarm:
    """The server's process and the robots."""

    server: subprocess.Popen
    swarm: Swarm


@contextlib.contextmanager
def serve(parameters: dict[str, object], folder: Path) -> Iterator[ServedSwarm]:
    """Start a server and give it with a swarm once it serves. Raises UserError."""
    command = [str(executable_path('policy_server')), '--ros-args', '-r', f'__node:={SERVER[1:]}']
    for name, value in parameters.items():
        command += ['-p', f'{name}:={value}']
    runtime = Runtime([])
    try:
        swarm = Swarm(runtime)
        runtime.add(swarm)
        runtime.spin_in_background()
        with child(command, folder / 'policy_server.log') as server:
            wait_until_active(swarm, server)
            yield ServedSwarm(server, swarm)
    finally:
        runtime.close()


def wait_until_active(swarm: Swarm, server: subprocess.Popen) -> None:
    client = swarm.create_client(GetStatus, f'{SERVER}/get_status')
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        if client.wait_for_service(0.2):
            status = call(client, GetStatus.Request(), 5.0).status
            if status.state == status.ACTIVE:
                return
            time.sleep(0.1)
    raise UserError('the server did not come up; see policy_server.log')


def set_parameter(served: ServedSwarm, name: str, value: object) -> None:
    """Change a parameter of the server. Raises UserError."""
    client = served.swarm.create_client(SetParameters, f'{SERVER}/set_parameters')
    request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
    (result,) = call(client, request, READY_TIMEOUT_S).results
    served.swarm.destroy_client(client)
    if not result.successful:
        raise UserError(f'{name} was not changed: {result.reason}')


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith('VmRSS:'):
            return int(line.split()[1]) / 1024
    raise UserError(f'process {pid} has no memory; it has ended')
