# SPDX-License-Identifier: Apache-2.0
"""A recorder of robots: `lerobot-serve record` with a strategy."""

from launch import LaunchDescription
from launch.action import Action

from lerobot_serve.ros import launch_support
from lerobot_serve.tools.recorder.settings import RecorderOptions

OPTIONS = ('strategy', 'robot', 'slice_size', 'slice_time', 'keep_slices')


def generate_launch_description() -> LaunchDescription:
    arguments = [
        *launch_support.verb_arguments(RecorderOptions, 'folder', *OPTIONS),
        *launch_support.launch_options('namespace', 'respawn'),
    ]
    return launch_support.launch_description('recorder.launch.py', arguments, start)


def start(given: dict) -> list[Action]:
    recorder = launch_support.verb_action(
        'record',
        [given['folder']],
        options={name: given[name] for name in OPTIONS},
        namespace=given['namespace'],
        respawn=given['respawn'] == 'true',
    )
    return [recorder]
