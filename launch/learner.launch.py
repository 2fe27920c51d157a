# SPDX-License-Identifier: Apache-2.0
"""A learner: recorded episodes become new versions of a policy, in rounds."""

from launch import LaunchDescription
from launch.action import Action

from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.ros import launch_support

PARAMETERS = (
    'trainer',
    'parent',
    'folder',
    'store',
    'episode_folders',
    'episodes_per_round',
    'router',
    'sources',
    'metrics_port',
    'metrics_address',
)


def generate_launch_description() -> LaunchDescription:
    arguments = [
        *launch_support.parameter_overrides(LearnerParameters, *PARAMETERS),
        launch_support.params_file('learner.yaml', 'learner'),
        *launch_support.launch_options('namespace', 'respawn', 'log_level'),
    ]
    return launch_support.launch_description('learner.launch.py', arguments, start)


def start(given: dict) -> list[Action]:
    learner = launch_support.node_action(
        'learner',
        file=given['params_file'],
        given={name: given[name] for name in PARAMETERS},
        log_level=given['log_level'],
        namespace=given['namespace'],
        respawn=given['respawn'] == 'true',
    )
    return [learner]
