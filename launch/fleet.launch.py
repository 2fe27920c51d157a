# SPDX-License-Identifier: Apache-2.0
"""
Simulated robots for a policy server or a router: robot_1, robot_2, ... Each is a sim_robot and an
edge_controller in a namespace of its own, below `namespace` if given.
"""

from launch import LaunchDescription
from launch.action import Action

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.ros import launch_support
from lerobot_serve.sim.parameters import SimParameters

# not zenoh_listen: one machine has one listener on an endpoint
OF_EDGE = ('servers', 'task', 'codec', 'link', 'zenoh_connect', 'zenoh_site', 'zenoh_keys')
OF_SIM = ('image_height', 'image_width', 'outcome_topic')


def generate_launch_description() -> LaunchDescription:
    arguments = [
        *launch_support.launch_options('robots'),
        *launch_support.parameter_overrides(EdgeParameters, *OF_EDGE),
        *launch_support.parameter_overrides(SimParameters, *OF_SIM),
        *launch_support.launch_options('seed'),
        launch_support.params_file('fleet.yaml', 'edge_controller and sim_robot'),
        *launch_support.launch_options('namespace', 'log_level'),
    ]
    return launch_support.launch_description('fleet.launch.py', arguments, start)


def start(given: dict) -> list[Action]:
    return [part for i in range(given['robots']) for part in robot(i, given)]


def robot(index: int, given: dict) -> list[Action]:
    """Return one robot. Its processes are independent: the exit of one ends no other."""
    everywhere = {
        'namespace': launch_support.join_namespaces(given['namespace'], f'robot_{index + 1}'),
        'file': given['params_file'],
        'log_level': given['log_level'],
    }
    sim = {**{name: given[name] for name in OF_SIM}, 'seed': given['seed'] + index}
    edge = {name: given[name] for name in OF_EDGE}
    return [
        launch_support.node_action('sim_robot', given=sim, **everywhere),
        launch_support.node_action('edge_controller', given=edge, **everywhere),
    ]
