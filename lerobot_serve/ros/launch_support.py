"""
What the files in launch/ share: arguments that are checked like parameters, and nodes that take
a parameter file and, over it, what was given.

Only launch files import this: it needs `launch`, which nothing else here does.
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
from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
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
# ros2 launch takes its own options among the arguments of the file
LAUNCH_OPTION_PREFIX = ('launch-', 'emulate_tty', 'sigterm_timeout', 'sigkill_timeout')
# what a parameter of a node means when empty; an empty argument means something else
EMPTY_MARKER = '; empty'


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What can be said to a launch file besides parameters of its nodes."""

    namespace: str = parameter('', 'namespace of all nodes, for example robot_1 or cell_2')
    robots: int = parameter(3, 'how many robots: robot_1, robot_2, ...', low=1, high=200)
    replicas: int = parameter(
        1,
        'policy servers of each slot: slot_a/policy_server, or slot_a_1/policy_server, ...',
        low=1,
        high=64,
    )
    seed: int = parameter(0, 'seed of robot_1; each further robot has the next one', low=0)
    respawn: str = parameter(
        'false',
        f'start a server or router that ended by itself again, after {RESPAWN_DELAY_S:g} s',
        choices=('true', 'false'),
    )
    log_level: str = parameter(
        'info',
        'the least severe messages to show',
        choices=('debug', 'info', 'warn', 'error', 'fatal'),
    )


@dataclass(frozen=True, slots=True)
class LaunchArgument:
    """
    One launch argument. One with a `file` leaves the value to that file when empty; `empty` says
    what an empty one means otherwise.
    """

    name: str
    spec: ParameterSpec
    default: str = ''
    file: str = ''
    about: str = ''
    empty: str = ''

    def declare(self) -> DeclareLaunchArgument:
        """Return what launch shows and takes."""
        # not launch's own choices: it reports a wrong one twice, and knows no bounds
        allowed = (
            f'; {self.spec.allowed}' if self.spec.choices or self.spec.low is not None else ''
        )
        unit = f' [{self.spec.unit}]' if self.spec.unit else ''
        commas = ', with commas between them' if self.spec.kind is tuple else ''
        empty = f'what {self.file} says' if self.file else self.empty
        otherwise = f'. Empty: {empty}' if empty else ''
        text = f'{self.about}{self.spec.text.partition(EMPTY_MARKER)[0]}'
        text += f'{commas}{unit}{allowed}{otherwise}.'
        return DeclareLaunchArgument(
            self.name, default_value=self.default, description=text[0].upper() + text[1:]
        )

    def value(self, context: LaunchContext) -> Any:
        """Return what was given, None when that is left to the file. Raises ParameterError."""
        text = context.launch_configurations[self.name].strip()
        if self.file and not text:
            return None
        try:
            return self.spec.check(convert(self.spec, text))
        except ParameterError as error:
            # the argument of one slot has another name than the parameter
            raise ParameterError(str(error).replace(self.spec.name, self.name, 1)) from None


def convert(spec: ParameterSpec, text: str) -> Any:
    """Return the value that a text stands for, the text itself when it stands for none."""
    if spec.kind is str:
        # a shell expands ~ at the beginning of a word only
        return os.path.expanduser(text) if spec.name.endswith(('_path', '_file')) else text
    if spec.kind is tuple:
        return tuple(item.strip() for item in text.split(','))
    try:
        return spec.kind(text)
    except ValueError:
        return text


def launch_options(*names: str, empty: str = '') -> list[LaunchArgument]:
    """Return arguments of LaunchOptions."""
    known = {spec.name: spec for spec in parameter_specs(LaunchOptions)}
    return [LaunchArgument(n, known[n], default=str(known[n].default), empty=empty) for n in names]


def parameter_overrides(
    of: type, *names: str, file: str = 'params_file', form: str = '{}', about: str = ''
) -> list[LaunchArgument]:
    """
    Return arguments that win over the file. `form` makes their names of those of the parameters,
    and `about` says whom they concern, where that is one of several.
    """
    known = {spec.name: spec for spec in parameter_specs(of)}
    return [
        LaunchArgument(form.format(name.replace('.', '_')), known[name], file=file, about=about)
        for name in names
    ]


def params_file(shipped: str, of: str, name: str = 'params_file') -> LaunchArgument:
    """Return the argument that names a parameter file; `shipped` is the one in config/."""
    text = f'YAML file with the parameters of {of}'
    spec = ParameterSpec(name, name, str, '', text)
    return LaunchArgument(name, spec, default=str(shared_file(f'config/{shipped}')))


def launch_description(
    file: str, arguments: list[LaunchArgument], start: Callable[[dict[str, Any]], list[Action]]
) -> LaunchDescription:
    """
    Return what a launch file returns; `file` is its name.

    `start` gets the value of every argument, None for one that is left to a parameter file.
    """

    def check_and_start(context: LaunchContext) -> list[Action]:
        check_known_arguments(file, context.argv, [argument.name for argument in arguments])
        values = {argument.name: argument.value(context) for argument in arguments}
        check_files_exist({n: v for n, v in values.items() if n.endswith('params_file')})
        return [*fastdds_profile_actions(), *start(values)]

    declared = [argument.declare() for argument in arguments]
    return LaunchDescription([*declared, OpaqueFunction(function=check_and_start)])


def check_known_arguments(file: str, words: list[str], known: list[str]) -> None:
    """Raise ParameterError for an argument that launch itself would pass over in silence."""
    if not any(Path(word).name == file for word in sys.argv):
        # another launch file includes this one, and the words may be meant for it
        return
    for name in (word.split(':=')[0] for word in words if ':=' in word):
        if name not in known and not name.startswith(LAUNCH_OPTION_PREFIX):
            raise ParameterError(f'{name} is no argument of {file}; there are {", ".join(known)}')


def check_files_exist(files: dict[str, str]) -> None:
    """Raise ParameterError for a parameter file that launch would leave out with a warning."""
    for name, file in files.items():
        if not Path(file).is_file():
            raise ParameterError(f'{name} must be a file, there is none at {file!r}')


def fastdds_profile_actions() -> list[Action]:
    """Return what names the shipped Fast DDS profile, nothing where the user has named one."""
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
    """Return one node of this package; what is `given` and not None wins over the `file`."""
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


class Logger(Substitution):
    """The logger of a node, also where an including launch file pushes a namespace."""

    def __init__(self, namespace: str, executable: str) -> None:
        super().__init__()
        self._namespace, self._executable = namespace, executable

    def perform(self, context: LaunchContext) -> str:
        """Return its name."""
        pushed = context.launch_configurations.get('ros_namespace')
        namespace = prefix_namespace(pushed, self._namespace) or ''
        return '.'.join([*filter(None, namespace.split('/')), self._executable])


def join_namespaces(namespace: str, name: str) -> str:
    """Return a namespace within another one, which may be empty."""
    return '/'.join(filter(None, [namespace.rstrip('/'), name]))


def write_parameter_file(executable: str, name: str, values: dict[str, Any]) -> str:
    """Write a parameter file into the log folder of this launch and return its path."""
    handle, path = tempfile.mkstemp('.yaml', f'{name}.', launch_config.log_dir)
    # among the entries that fit a node the one that came up last wins. The plain /** would join
    # the /** of the file before it and lose to a later entry there; no file has this one
    with os.fdopen(handle, 'w') as file:
        yaml.safe_dump({f'/**/**/{executable}': {'ros__parameters': values}}, file)
    return path
