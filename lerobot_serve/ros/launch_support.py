# SPDX-License-Identifier: Apache-2.0
"""
Support for the launch files: arguments that are checked like parameters, and nodes that take a
parameter file and overrides.

Only launch files import this module: it needs `launch`, which no other module does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import os
from pathlib import Path
import sys
import tempfile
from typing import Any

from launch import LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    SetEnvironmentVariable,
)
from launch.logging import launch_config
from launch.substitution import Substitution
from launch_ros.actions import Node
from launch_ros.utilities import prefix_namespace
import yaml

from lerobot_serve.parameters import parameter, parameter_specs, ParameterError, ParameterSpec
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.ros.process.fastdds_profile import (
    profile_variable,
    PROFILE_VARIABLES,
    shipped_profile,
)

RESPAWN_DELAY_S = 2.0
# parameters of the Zenoh link, see zenoh.zenoh_parameters
ZENOH = ('zenoh_listen', 'zenoh_connect', 'zenoh_site', 'zenoh_keys')
HOME_ALLOWED = ('_path', '_file', '_keys')
# ros2 launch takes its own options among the arguments of the file
LAUNCH_OPTION_PREFIX = ('launch-', 'emulate_tty', 'sigterm_timeout', 'sigkill_timeout')
# starts the note on an empty parameter; an empty launch argument has another meaning
EMPTY_MARKER = '; empty'


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Arguments of launch files that are not node parameters."""

    namespace: str = parameter('', 'namespace of all nodes, for example robot_1 or cell_2')
    robots: int = parameter(3, 'number of robots: robot_1, robot_2, ...', low=1, high=200)
    replicas: int = parameter(
        1,
        'policy servers of each slot: slot_a/policy_server, or slot_a_1/policy_server, ...',
        low=1,
        high=64,
    )
    seed: int = parameter(0, 'seed of robot_1; robot_N uses seed + N - 1', low=0)
    respawn: str = parameter(
        'false',
        f'restart a server or router that exits, after {RESPAWN_DELAY_S:g} s',
        choices=('true', 'false'),
    )
    log_level: str = parameter(
        'info',
        'minimum severity of the messages shown',
        choices=('debug', 'info', 'warn', 'error', 'fatal'),
    )


@dataclass(frozen=True, slots=True)
class LaunchArgument:
    """
    One launch argument. With a `file`, an empty argument leaves the value to that file; otherwise
    `empty_text` describes the meaning of an empty one.
    """

    name: str
    spec: ParameterSpec
    default: str = ''
    file: str = ''
    prefix_text: str = ''
    empty_text: str = ''

    def declare(self) -> DeclareLaunchArgument:
        """Return the declaration for launch."""
        # not launch's own choices: it reports a wrong value twice and has no bounds
        allowed = (
            f'; {self.spec.allowed}' if self.spec.choices or self.spec.low is not None else ''
        )
        unit = f' [{self.spec.unit}]' if self.spec.unit else ''
        commas = ', separated by commas' if self.spec.kind is tuple else ''
        empty = f'the value in {self.file}' if self.file else self.empty_text
        otherwise = f'. Empty: {empty}' if empty else ''
        text = f'{self.prefix_text}{self.spec.text.partition(EMPTY_MARKER)[0]}'
        text += f'{commas}{unit}{allowed}{otherwise}.'
        return DeclareLaunchArgument(
            self.name, default_value=self.default, description=text[0].upper() + text[1:]
        )

    def value(self, context: LaunchContext) -> Any:
        """Return the given value, None if the file sets it. Raises ParameterError."""
        text = context.launch_configurations[self.name].strip()
        if self.file and not text:
            return None
        try:
            return self.spec.check(convert(self.spec, text))
        except ParameterError as error:
            # the argument of one slot has another name than the parameter
            raise ParameterError(str(error).replace(self.spec.name, self.name, 1)) from None


def convert(spec: ParameterSpec, text: str) -> Any:
    """Return the parsed value, or the text itself when it cannot be parsed."""
    if spec.kind is str:
        # a shell expands ~ at the beginning of a word only
        return os.path.expanduser(text) if spec.name.endswith(HOME_ALLOWED) else text
    if spec.kind is tuple:
        return tuple(item.strip() for item in text.split(','))
    try:
        return spec.kind(text)
    except ValueError:
        return text


def launch_options(*names: str, empty_text: str = '') -> list[LaunchArgument]:
    """Return arguments of LaunchOptions."""
    known = {spec.name: spec for spec in parameter_specs(LaunchOptions)}
    return [
        LaunchArgument(name, known[name], default=str(known[name].default), empty_text=empty_text)
        for name in names
    ]


def parameter_overrides(
    of: type, *names: str, file: str = 'params_file', form: str = '{}', prefix_text: str = ''
) -> list[LaunchArgument]:
    """
    Return arguments that override the file. `form` derives their names from the parameter names;
    `prefix_text` starts their descriptions and names the node, where there are several.
    """
    known = {spec.name: spec for spec in parameter_specs(of)}
    return [
        LaunchArgument(
            form.format(name.replace('.', '_')), known[name], file=file, prefix_text=prefix_text
        )
        for name in names
    ]


def verb_arguments(of: type, *names: str) -> list[LaunchArgument]:
    """Return arguments that are options of a verb, with their defaults."""
    known = {spec.name: spec for spec in parameter_specs(of)}
    return [LaunchArgument(name, known[name], default=str(known[name].default)) for name in names]


def params_file(shipped: str, of: str, name: str = 'params_file') -> LaunchArgument:
    """Return the argument that names a parameter file; `shipped` is the one in config/."""
    text = f'YAML file with the parameters of {of}'
    spec = ParameterSpec(name, name, str, '', text)
    return LaunchArgument(name, spec, default=str(shared_file(f'config/{shipped}')))


def launch_description(
    file: str, arguments: list[LaunchArgument], start: Callable[[dict[str, Any]], list[Action]]
) -> LaunchDescription:
    """
    Return the launch description of the launch file named `file`.

    `start` receives the value of every argument, None for one that a parameter file sets.
    """

    def check_and_start(context: LaunchContext) -> list[Action]:
        check_known_arguments(file, context.argv, [argument.name for argument in arguments])
        values = {argument.name: argument.value(context) for argument in arguments}
        check_files_exist({n: v for n, v in values.items() if n.endswith('params_file')})
        return [*fastdds_profile_actions(), *start(values)]

    declared = [argument.declare() for argument in arguments]
    return LaunchDescription([*declared, OpaqueFunction(function=check_and_start)])


def check_known_arguments(file: str, words: list[str], known: list[str]) -> None:
    """Raise ParameterError for an argument that launch itself would ignore silently."""
    if not any(Path(word).name == file for word in sys.argv):
        # another launch file includes this one; the arguments may belong to it
        return
    for name in (word.split(':=')[0] for word in words if ':=' in word):
        if name not in known and not name.startswith(LAUNCH_OPTION_PREFIX):
            raise ParameterError(f'{name} is not an argument of {file}; use {", ".join(known)}')


def check_files_exist(files: dict[str, str]) -> None:
    """Raise ParameterError for a parameter file that launch would skip with a warning."""
    for name, file in files.items():
        if not Path(file).is_file():
            raise ParameterError(f'{name} must be an existing file, got {file!r}')


def fastdds_profile_actions() -> list[Action]:
    """Return the action that sets the shipped Fast DDS profile, unless the user has set one."""
    profile = shipped_profile()
    if profile is None or any(os.environ.get(name) for name in PROFILE_VARIABLES):
        return []
    return [SetEnvironmentVariable(profile_variable(), str(profile))]


def node_action(
    executable: str,
    *,
    file: str,
    given: dict[str, Any],
    log_level: str,
    namespace: str = '',
    respawn: bool = False,
) -> Node:
    """Return one node of this package; values in `given` that are not None override the `file`."""
    values = {n: v for n, v in given.items() if v is not None}
    name = '.'.join([*filter(None, namespace.split('/')), executable])
    return Node(
        package='lerobot_serve',
        executable=executable,
        name=executable,
        namespace=namespace,
        exec_name=name,
        parameters=[file, *([write_parameter_file(executable, name, values)] if values else [])],
        ros_arguments=['--log-level', [Logger(namespace, executable), f':={log_level}']],
        output='both',
        respawn=respawn,
        respawn_delay=RESPAWN_DELAY_S,
    )


def verb_action(
    verb: str,
    words: list[str],
    *,
    options: dict[str, Any],
    namespace: str = '',
    respawn: bool = False,
) -> ExecuteProcess:
    """Return a verb of `lerobot-serve`; `options` that are empty or 0 are not given."""
    given = {**options, 'namespace': namespace}
    flags = [f'--{name.replace("_", "-")}={value}' for name, value in given.items() if value]
    return ExecuteProcess(
        cmd=['lerobot-serve', verb, *words, *flags],
        name=verb,
        output='both',
        respawn=respawn,
        respawn_delay=RESPAWN_DELAY_S,
    )


class Logger(Substitution):  # type: ignore[misc]  # launch has no types
    """The logger name of a node, also where an including launch file pushes a namespace."""

    def __init__(self, namespace: str, executable: str) -> None:
        super().__init__()
        self._namespace, self._executable = namespace, executable

    def perform(self, context: LaunchContext) -> str:
        """Return the name."""
        pushed = context.launch_configurations.get('ros_namespace')
        namespace = prefix_namespace(pushed, self._namespace) or ''
        return '.'.join([*filter(None, namespace.split('/')), self._executable])


def join_namespaces(namespace: str, name: str) -> str:
    """Return `name` below `namespace`, which may be empty."""
    return '/'.join(filter(None, [namespace.rstrip('/'), name]))


def write_parameter_file(executable: str, name: str, values: dict[str, Any]) -> str:
    """Write a parameter file into the log folder of this launch and return its path."""
    handle, path = tempfile.mkstemp('.yaml', f'{name}.', launch_config.log_dir)
    # the last matching entry applies to a node. A plain /** would merge with the /** of the file
    # before it and lose to a later entry there; no file contains this pattern
    with os.fdopen(handle, 'w') as file:
        yaml.safe_dump({f'/**/**/{executable}': {'ros__parameters': values}}, file)
    return path
