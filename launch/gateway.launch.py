# SPDX-License-Identifier: Apache-2.0
"""A gateway: clients of LeRobot, openpi, GR00T and HTTP become sessions of a policy router."""

from launch import LaunchDescription
from launch.action import Action

from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.ros import launch_support

PARAMETERS = (
    'doors',
    'server',
    'max_callers',
    'request_timeout_s',
    'metrics_port',
    'metrics_address',
    'link',
    *launch_support.ZENOH,
)


def generate_launch_description() -> LaunchDescription:
    arguments = [
        *launch_support.parameter_overrides(GatewayParameters, *PARAMETERS),
        launch_support.params_file('gateway.yaml', 'gateway'),
        *launch_support.launch_options('namespace', 'respawn', 'log_level'),
    ]
    return launch_support.launch_description('gateway.launch.py', arguments, start)


def start(given: dict) -> list[Action]:
    gateway = launch_support.node_action(
        'gateway',
        file=given['params_file'],
        given={name: given[name] for name in PARAMETERS},
        log_level=given['log_level'],
        namespace=given['namespace'],
        respawn=given['respawn'] == 'true',
    )
    return [gateway]
