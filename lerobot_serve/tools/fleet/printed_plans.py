# SPDX-License-Identifier: Apache-2.0
"""
Print a plan, equal in effect, as a launch file of ROS 2 or as units of systemd: one service for
each process, and a target for all. Pure.

systemd ends units in the opposite order of their start, so each stage starts after the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
import re

from lerobot_serve.contract.names import file_name
from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet.process import Ending, FleetProcess, QUICK_FAILURES, QUICK_S

# what a sourced setup.bash sets, and what chooses domain and middleware
VARIABLES = (
    'AMENT_PREFIX_PATH',
    'COLCON_PREFIX_PATH',
    'FASTDDS_DEFAULT_PROFILES_FILE',
    'FASTRTPS_DEFAULT_PROFILES_FILE',
    'HOME',
    'LD_LIBRARY_PATH',
    'PATH',
    'PYTHONPATH',
    'RMW_IMPLEMENTATION',
    'ROS_AUTOMATIC_DISCOVERY_RANGE',
    'ROS_DISTRO',
    'ROS_DOMAIN_ID',
    'ROS_HOME',
    'ROS_STATIC_PEERS',
    'ROS_VERSION',
)
RESTART_S, STOP_LIMIT_S = 2, 30
# a node that stands still for so long is restarted; a robot waits for its edge controller
WATCHDOG_S = {
    'edge_controller': 5,
    'gateway': 30,
    'learner': 30,
    'policy_router': 10,
    'policy_server': 30,
    'sim_robot': 30,
}
# until a node reports that it runs, which is before it loads a policy: imports on a slow disk
START_LIMIT_S = 300


def unit_files(
    plan: Sequence[FleetProcess],
    fleet: str,
    *,
    environment: Mapping[str, str],
    folder: Path,
    executable: Callable[[str], Path],
) -> dict[str, str]:
    """
    Return the text of each unit file by name. `fleet` names all units, `folder` is the working
    directory, `executable` returns the path of an executable. Raises UserError for a name that a
    unit cannot have.
    """
    for what, text in (('the fleet file', fleet), ('the working directory', str(folder))):
        if not text.isprintable():
            raise UserError(
                f'the name of {what} has a line end or another control character, which a unit of '
                f'systemd cannot have: {text!r}; rename it'
            )
    group = f'lerobot-serve-{file_name(fleet)}'
    names = {process.name: f'{group}-{process.name}.service' for process in plan}
    target = f'{group}.target'
    units = {
        names[process.name]: _service(
            process,
            target=target,
            after=[names[p.name] for p in plan if p.stage < process.stage],
            environment=environment,
            folder=folder,
            executable=executable(process.executable),
        )
        for process in plan
    }
    return {target: _target(fleet, list(names.values())), **units}


def _target(fleet: str, services: list[str]) -> str:
    return (
        f'[Unit]\nDescription=lerobot_serve fleet {_plain(fleet)}\nWants={" ".join(services)}\n\n'
        '[Install]\nWantedBy=multi-user.target\n'
    )


def _service(
    process: FleetProcess,
    *,
    target: str,
    after: list[str],
    environment: Mapping[str, str],
    folder: Path,
    executable: Path,
) -> str:
    quick = QUICK_FAILURES[Ending.FAILED]
    command = ' '.join(quoted(word) for word in (str(executable), *process.arguments))
    lines = [
        '[Unit]',
        f'Description=lerobot_serve {_plain(process.name)} ({process.node})',
        f'PartOf={target}',
        f'After={" ".join(["network-online.target", *after])}',
        'Wants=network-online.target',
        f'StartLimitIntervalSec={QUICK_S:g}',
        f'StartLimitBurst={quick}',
        '',
        '[Service]',
        *_reports(process.executable),
        f'ExecStart={command}',
        f'WorkingDirectory={_plain(str(folder))}',
        *(
            f'Environment={quoted(f"{name}={environment[name]}", is_command=False)}'
            for name in VARIABLES
            if environment.get(name)
        ),
        'Restart=on-failure',
        f'RestartSec={RESTART_S}',
        'KillSignal=SIGINT',
        f'TimeoutStopSec={STOP_LIMIT_S}',
        '',
        '[Install]',
        f'WantedBy={target}',
    ]
    return '\n'.join(lines) + '\n'


def _reports(executable: str) -> list[str]:
    """Return how systemd learns that a process runs: nodes report, verbs do not."""
    watchdog_s = WATCHDOG_S.get(executable)
    if watchdog_s is None:
        return ['Type=exec']
    return [
        'Type=notify',
        'NotifyAccess=main',
        f'TimeoutStartSec={START_LIMIT_S}',
        f'WatchdogSec={watchdog_s}',
    ]


def quoted(text: str, *, is_command: bool = True) -> str:
    """Return a word of a unit file; a command line would also replace variables."""
    inner = text.replace('\\', '\\\\').replace('"', '\\"').replace('\n', '\\n')
    inner = _plain(inner)
    return f'"{inner.replace("$", "$$") if is_command else inner}"'


def _plain(text: str) -> str:
    """Return the text without specifiers, which begin with a percent sign."""
    return text.replace('%', '%%')


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
