# SPDX-License-Identifier: Apache-2.0
"""Print a plan as a launch file of ROS 2, equal in effect. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import re

from lerobot_serve.tools.fleet.plan import FleetProcess

HEADER = """# SPDX-License-Identifier: Apache-2.0
\"\"\"
The processes of {source}, printed by `lerobot-serve up --print-launch`.

`ros2 launch` restarts a process for ever and ends all at the same time; `lerobot-serve up` gives
one up that fails at once, and ends the robots first.
\"\"\"

from launch import LaunchDescription
from launch.actions import ExecuteProcess
from launch_ros.actions import Node


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription(
        [
"""
FOOTER = """        ]
    )
"""
RESPAWN_DELAY_S = 2.0
# quotes, backslashes, line ends and the like
UNSAFE = re.compile(r'[^\w.\- ]')


def launch_text(plan: Sequence[FleetProcess], source: str) -> str:
    """Return the launch file; `source` names the fleet file."""
    nodes = ''.join(line for process in plan for line in _node(process))
    return f'{HEADER.format(source=as_comment(source))}{nodes}{FOOTER}'


def as_comment(name: str) -> str:
    """Return the name of a file for a docstring, which it cannot end."""
    return UNSAFE.sub('?', name)


def _node(process: FleetProcess) -> Iterator[str]:
    if process.command:
        yield '            ExecuteProcess(\n'
        yield f'                cmd={[process.executable, *process.arguments]!r},\n'
        yield f'                name={process.name!r},\n'
    else:
        yield '            Node(\n'
        yield "                package='lerobot_serve',\n"
        yield f'                executable={process.executable!r},\n'
        yield f'                exec_name={process.name!r},\n'
        yield '                ros_arguments=[\n'
        # without --ros-args, which launch_ros adds
        words = process.arguments[1:]
        for option, value in zip(words[::2], words[1::2], strict=True):
            yield f'                    {option!r}, {value!r},\n'
        yield '                ],\n'
    yield "                output='both',\n"
    yield '                respawn=True,\n'
    yield f'                respawn_delay={RESPAWN_DELAY_S!r},\n'
    yield '            ),\n'
