# SPDX-License-Identifier: Apache-2.0
"""The edge controller of one robot. Runs on the robot and needs no weights, torch or GPU."""

from launch import LaunchDescription
from launch.action import Action

from lerobot_serve.contract.names import namespace
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.ros import launch_support

PARAMETERS = (
    'client_id',
    'servers',
    'robot_file',
    'network_profile',
    'task',
    'codec',
    'link',
    *launch_support.ZENOH,
)


def generate_launch_description() -> LaunchDescription:
    arguments = [
        *launch_support.launch_options('namespace', empty_text='client_id, as a valid ROS name'),
        *launch_support.parameter_overrides(EdgeParameters, *PARAMETERS),
        launch_support.params_file('edge.yaml', 'edge_controller'),
        *launch_support.launch_options('log_level'),
    ]
    return launch_support.launch_description('edge.launch.py', arguments, start)


def start(given: dict) -> list[Action]:
    edge = launch_support.node_action(
        'edge_controller',
        file=given['params_file'],
        given={name: given[name] for name in PARAMETERS},
        log_level=given['log_level'],
        namespace=namespace(given['namespace'], given['client_id']),
    )
    return [edge]
