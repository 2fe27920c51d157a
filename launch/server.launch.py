# SPDX-License-Identifier: Apache-2.0
"""One policy server."""

from launch import LaunchDescription
from launch.action import Action

from lerobot_serve.ros import launch_support
from lerobot_serve.server.parameters import ServerParameters

PARAMETERS = (
    'policy_kind',
    'policy_path',
    'device',
    'slot',
    'scheduler',
    'admission',
    'max_sessions',
    'metrics_port',
    'metrics_address',
    'trace_folder',
    'trace_images',
    *launch_support.ZENOH,
)


def generate_launch_description() -> LaunchDescription:
    arguments = [
        *launch_support.parameter_overrides(ServerParameters, *PARAMETERS),
        launch_support.params_file('server.yaml', 'policy_server'),
        *launch_support.launch_options('namespace', 'respawn', 'log_level'),
    ]
    return launch_support.launch_description('server.launch.py', arguments, start)


def start(given: dict) -> list[Action]:
    server = launch_support.node_action(
        'policy_server',
        file=given['params_file'],
        given={name: given[name] for name in PARAMETERS},
        log_level=given['log_level'],
        namespace=given['namespace'],
        respawn=given['respawn'] == 'true',
    )
    return [server]
