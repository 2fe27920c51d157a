# SPDX-License-Identifier: Apache-2.0
"""
The processes of the site that `fault_fleet` runs: names, ports and parameters. Pure.

Half of the robots ask over ROS 2, half over Zenoh; all know both routers. Each router reaches the
store, and the servers over Zenoh, through a forwarder of its own, so that one link can be cut.
"""

from __future__ import annotations

from pathlib import Path
import random

from benchmarks.network_emulation.relay import SERVER
from lerobot_serve.ros.package_share import shared_file

ROUTERS = {'router_1': 7447, 'router_2': 7448}
# server -> its slot, and its port over Zenoh
SERVERS = {'a1': ('a', 7451), 'a2': ('a', 7452), 'b1': ('b', 7453), 'b2': ('b', 7454)}
POLICIES = {'a': 'reach_v1', 'b': 'reach'}
ROS, ZENOH = 'ros', 'zenoh'
ROBOTS = {'robot_1': ROS, 'robot_2': ZENOH, 'robot_3': ROS, 'robot_4': ZENOH}
WITNESSES = {'witness_robots': ROS, 'witness_site': ZENOH}
PIXELS, RATE_HZ, ATTEMPT_S = 64, 15.0, 4.0
# servers of both links in one slot, as a site has them
OVER_ZENOH = ('a1', 'b1')
STORE = 'store'
# link -> the router, what is at its other end, and the port of the forwarder
LINKS = {
    f'{router}_to_{end}': (router, end, port)
    for port, (router, end) in enumerate(
        ((router, end) for router in ROUTERS for end in (STORE, *OVER_ZENOH)), start=7461
    )
}


def executable_and_parameters(
    name: str, folder: Path, database: str
) -> tuple[str, dict[str, object]]:
    """Return what runs a process whose traces go below `folder`."""
    home = folder / 'ros' / name / 'state'
    if name in SERVERS:
        return 'policy_server', server_parameters(name) | {'trace_folder': str(folder / name)}
    if name in ROUTERS:
        parameters = router_parameters(name, database)
        return 'policy_router', parameters | _folders(folder / name, home)
    if name in ROBOTS:
        return 'edge_controller', edge_parameters(name) | _folders(folder / name, home)
    return 'sim_robot', {
        'seed': list(ROBOTS).index(name.removesuffix('_arm')),
        'rate_hz': RATE_HZ,
        'attempt_timeout_s': ATTEMPT_S,
        'image_height': PIXELS,
        'image_width': PIXELS,
    }


def _folders(traces: Path, state: Path) -> dict[str, object]:
    return {'trace_folder': str(traces), 'state_folder': str(state)}


def server_parameters(name: str) -> dict[str, object]:
    slot, port = SERVERS[name]
    return {
        'policy_kind': 'builtin',
        'policy_path': str(shared_file(f'config/policies/{POLICIES[slot]}')),
        'slot': slot,
        'cpu_threads': 1,
        'status_period_s': 0.2,
        'zenoh_listen': [f'tcp/127.0.0.1:{port}'],
        'trace_images': 'none',
    }


def router_parameters(name: str, database: str) -> dict[str, object]:
    """Return the parameters of a router, which reaches its store and some servers by a link."""
    ports = {end: port for router, end, port in LINKS.values() if router == name}
    slots = {
        f'slot_{slot}': [
            f'zenoh:/{server}' if server in OVER_ZENOH else f'/{server}'
            for server in SERVERS
            if SERVERS[server][0] == slot
        ]
        for slot in POLICIES
    }
    return {
        **slots,
        'split_percent': 50,
        'state_url': f'postgresql://router@127.0.0.1:{ports[STORE]}/{database}',
        'state_site': 'faults',
        'zenoh_connect': [f'tcp/127.0.0.1:{ports[server]}' for server in OVER_ZENOH],
        'zenoh_listen': [f'tcp/0.0.0.0:{ROUTERS[name]}'],
    }


def edge_parameters(name: str) -> dict[str, object]:
    """Return the parameters of a robot, which asks the routers in an order of its own."""
    routers = random.Random(name).sample(sorted(ROUTERS), len(ROUTERS))
    parameters: dict[str, object] = {
        'servers': [f'/{router}' for router in routers],
        'task': 'reach the red target',
        'codec': 'raw',
        # the default: machines of a benchmark are shared, and pauses of theirs are not faults
        'network_profile': 'wifi',
        # an arm that stands still for a while is no reason to stop
        'clamp_alarm_window_s': 0.0,
        'trace_images': 'none',
    }
    if ROBOTS[name] == ZENOH:
        connect = [f'tcp/{SERVER}:{port}' for port in ROUTERS.values()]
        parameters |= {'link': ZENOH, 'zenoh_connect': connect}
    return parameters


def node_name(name: str) -> str:
    return 'edge_controller' if name in ROBOTS else name
