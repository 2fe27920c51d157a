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
from typing import Any

from launch import LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import Parameter, ParameterValue

from lerobot_serve.parameters import parameter, ParameterError, Spec, specs
from lerobot_serve.ros.large_messages import shipped_profile, VARIABLES
from lerobot_serve.ros.share import shared_file

RESPAWN_DELAY_S = 2.0
WORDS = {'true': True, 'false': False}
# ros2 launch puts its own options among the arguments of the file
FOREIGN = 'launch-'


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What can be said to a launch file besides parameters of its nodes."""

    namespace: str = parameter('', 'namespace of the node, for example robot_1')
    robots: int = parameter(3, 'how many robots: robot_1, robot_2, ...', low=1, high=200)
    seed: int = parameter(0, 'seed of robot_1; each further robot has the next one', low=0)
    respawn: bool = parameter(
        False,
        f'start a server that ended by itself again after {RESPAWN_DELAY_S:g} s: true or false',
    )
    log_level: str = parameter(
        'info',
        'the least severe messages to show',
        choices=('debug', 'info', 'warn', 'error', 'fatal'),
    )


@dataclass(frozen=True, slots=True)
class Argument:
    """One launch argument. One with a `file` leaves the value to that file when empty."""

    name: str
    spec: Spec
    default: str = ''
    file: str = ''
    about: str = ''

    def declare(self) -> DeclareLaunchArgument:
        """Return what launch shows and takes."""
        # not launch's own choices: it reports a wrong one twice, and cannot report a bound
        text = f'{self.about}{self.spec.text}'
        text = text[0].upper() + text[1:] + (f' [{self.spec.unit}]' if self.spec.unit else '')
        if self.spec.choices or self.spec.low is not None:
            text += f', {self.spec.allowed}'
        text += f'. Empty: what {self.file} says.' if self.file else '.'
        return DeclareLaunchArgument(self.name, default_value=self.default, description=text)

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


def convert(spec: Spec, text: str) -> Any:
    """Return the value that a text stands for, the text itself when it stands for none."""
    if spec.kind is str:
        # a shell expands ~ at the beginning of a word only
        is_path = spec.name.endswith(('_path', '_file'))
        return os.path.expanduser(text) if is_path else text
    try:
        return WORDS.get(text.lower(), text) if spec.kind is bool else spec.kind(text)
    except ValueError:
        return text


def options(*names: str) -> list[Argument]:
    """Return arguments of LaunchOptions."""
    known = {spec.name: spec for spec in specs(LaunchOptions)}
    return [Argument(n, known[n], default=str(known[n].default).lower()) for n in names]


def overrides(
    of: type, *names: str, file: str = 'params_file', slot: str = ''
) -> list[Argument]:
    """Return arguments that win over the file; with `slot`, those of one slot."""
    known = {spec.name: spec for spec in specs(of)}
    suffix, about = (f'_{slot}', f'slot {slot}: ') if slot else ('', '')
    return [Argument(f'{n}{suffix}', known[n], file=file, about=about) for n in names]


def params_file(shipped: str, of: str, name: str = 'params_file') -> Argument:
    """Return the argument that names a parameter file; `shipped` is the one in config/."""
    text = f'YAML file with the parameters of {of}'
    spec = Spec(name, str, '', text, '', None, None, (), False)
    return Argument(name, spec, default=str(shared_file(f'config/{shipped}')))


def description(
    file: str, arguments: list[Argument], start: Callable[[dict[str, Any]], list[Action]]
) -> LaunchDescription:
    """
    Return what a launch file returns; `file` is its name.

    `start` gets the value of every argument, None for one that is left to a parameter file.
    """

    def check_and_start(context: LaunchContext) -> list[Action]:
        refuse_unknown(file, context.argv, [argument.name for argument in arguments])
        values = {argument.name: argument.value(context) for argument in arguments}
        return [*name_profile(), *start(values)]

    declared = [argument.declare() for argument in arguments]
    return LaunchDescription([*declared, OpaqueFunction(function=check_and_start)])


def refuse_unknown(file: str, words: list[str], known: list[str]) -> None:
    """Raise ParameterError for an argument that launch itself would pass over in silence."""
    if not any(Path(word).name == file for word in sys.argv):
        # another launch file includes this one, and the words may be meant for it
        return
    for name in (word.split(':=')[0] for word in words if ':=' in word):
        if name not in known and not name.startswith(FOREIGN):
            raise ParameterError(f'{name} is no argument of {file}; there are {", ".join(known)}')


def name_profile() -> list[Action]:
    """Return what names the shipped Fast DDS profile, nothing where the user has named one."""
    profile = shipped_profile()
    if profile is None or any(os.environ.get(name) for name in VARIABLES):
        return []
    return [SetEnvironmentVariable(VARIABLES[0], str(profile))]


def node(
    executable: str,
    *,
    file: str,
    given: dict[str, Any],
    log_level: str,
    namespace: str = '',
    respawn: bool = False,
) -> Node:
    """Return one node of this package; what is `given` and not None wins over the `file`."""
    values = {n: ParameterValue(v, value_type=type(v)) for n, v in given.items() if v is not None}
    name = '.'.join([*filter(None, namespace.split('/')), executable])
    return Node(
        package='lerobot_serve',
        executable=executable,
        name=executable,
        namespace=namespace,
        exec_name=name,
        # twice, because among /name and /** the later entry wins, and a file may have both
        parameters=[
            file,
            *([values] if values else []),
            *(Parameter(n, v.value, value_type=type(v.value)) for n, v in values.items()),
        ],
        ros_arguments=['--log-level', f'{name}:={log_level}'],
        output='both',
        respawn=respawn,
        respawn_delay=RESPAWN_DELAY_S,
    )
