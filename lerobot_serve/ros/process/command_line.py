# SPDX-License-Identifier: Apache-2.0
"""
The command line of a node's executable: print help and reject arguments that ROS would ignore.

rclpy ignores words before `--ros-args`, parameters addressed to another node, and parameter files
without an entry for this node. A user would assume that they are applied. Plain functions; the
main thread calls them before the node is built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
import re
from typing import Any

import yaml

from lerobot_serve.errors import UserError
from lerobot_serve.parameters import closest_name, parameter_specs, ParameterSpec, TYPE_NAMES

HELP = ('-h', '--help')
BEGIN, END = '--ros-args', '--'
PARAMETER, REMAP, FILE = ('-p', '--param'), ('-r', '--remap'), '--params-file'
# the remapping rules that rename the node itself
NODE_RULES, NAMESPACE_RULE = ('__node', '__name'), '__ns'
WIDTH = 28
DESCRIPTIONS = {
    'policy_server': 'Serve one policy on one device.',
    'edge_controller': (
        'Control one robot: request actions from servers and execute them within its limits.'
    ),
    'policy_router': 'Route requests to the replicas of two slots and run canary rollouts.',
    'gateway': 'Turn clients of other protocols into sessions of a policy router.',
    'learner': 'Train new versions of a policy on recorded episodes, in rounds.',
    'sim_robot': 'Simulate an arm with two cameras.',
}


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """One executable: its name, which is also the node name, and its parameters."""

    name: str
    parameters: type[Any]


def is_help_requested(arguments: Sequence[str]) -> bool:
    return any(argument in HELP for argument in arguments)


def help_text(command: NodeCommand) -> str:
    """Return the output of `--help`."""
    lines = [
        f'usage: {command.name} [--help] [--ros-args [-p NAME:=VALUE ...] [--params-file FILE]',
        '         [-r __ns:=/NAMESPACE] [-r FROM:=TO] [--log-level LEVEL]]',
        '',
        DESCRIPTIONS[command.name],
        '',
        'parameters (default):',
        *(line for spec in parameter_specs(command.parameters) for line in _entry(spec)),
        '',
        f'example: ros2 run lerobot_serve {command.name} --ros-args --params-file my.yaml',
    ]
    return '\n'.join(lines)


def _entry(spec: ParameterSpec) -> Iterator[str]:
    default = list(spec.default) if spec.kind is tuple else spec.default
    shown = str(default).lower() if spec.kind is bool else repr(default)
    unit = f' {spec.unit}' if spec.unit else ''
    yield f'  {spec.name:<{WIDTH}} {TYPE_NAMES[spec.kind]} ({shown}{unit})'
    bound = f'; {spec.allowed}' if spec.choices or spec.low is not None else ''
    yield f'  {"":<{WIDTH}} {spec.text}{bound}'


def check_arguments(command: NodeCommand, arguments: Sequence[str]) -> None:
    """
    Raise UserError for an argument without effect; rcl reports the arguments that it rejects.
    """
    foreign, ros = split_arguments(arguments)
    if foreign:
        raise UserError(_unknown(command, foreign))
    path = node_path(command, ros)
    for option, value in option_values(ros):
        if option in PARAMETER:
            _check_address(value, path)
        if option == FILE:
            _check_file(Path(value), path)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments outside and inside of `--ros-args ... --`."""
    foreign: list[str] = []
    ros: list[str] = []
    inside = False
    for word in arguments:
        if word == BEGIN:
            inside = True
        elif inside and word == END:
            inside = False
        else:
            (ros if inside else foreign).append(word)
    return foreign, ros


def option_values(ros: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option that takes a value, with its value."""
    valued = (*PARAMETER, *REMAP, FILE)
    for option, value in pairwise(ros):
        if option in valued:
            yield option, value


def node_path(command: NodeCommand, ros: Sequence[str]) -> str:
    """Return the full name of the node after remapping."""
    name, namespace = command.name, ''
    for option, rule in option_values(ros):
        source, _, target = rule.partition(':=')
        if option not in REMAP or not target:
            continue
        key = source.rpartition(':')[2]
        if key in NODE_RULES:
            name = target
        if key == NAMESPACE_RULE:
            namespace = target.strip('/')
    return f'/{namespace}/{name}' if namespace else f'/{name}'


def _unknown(command: NodeCommand, foreign: list[str]) -> str:
    names = [spec.name for spec in parameter_specs(command.parameters)]
    hints = [hint for word in foreign if (hint := _hint(word, foreign, names))]
    remedy = f'; did you mean {BEGIN} {" ".join(hints)}?' if hints else ';'
    given = ' '.join(foreign)
    return f'unknown argument: {given}{remedy} `{command.name} --help` lists all parameters'


def _hint(word: str, foreign: list[str], names: list[str]) -> str:
    """Return the ROS form of the parameter closest to a word; empty for none."""
    key, _, value = re.sub(':?=', '\0', word, count=1).partition('\0')
    plain = re.sub(r'[-.]', '_', key.strip('-'))
    flat = {name.replace('.', '_'): name for name in names}
    near = closest_name(plain, flat)
    if not near or not (word.startswith('-') or value):
        return ''
    after = foreign[foreign.index(word) + 1 :]
    if not value and after and not after[0].startswith('-'):
        value = after[0]
    return f'-p {flat[near]}:={value or "VALUE"}'


def _check_address(value: str, path: str) -> None:
    """Raise UserError for a parameter that is addressed to another node."""
    address, _, _ = value.partition(':=')[0].rpartition(':')
    if address and not matches_node(address, path):
        raise UserError(
            f'-p {value} addresses the node {address}, this node is {path}; remove `{address}:`'
        )


def _check_file(file: Path, path: str) -> None:
    """Raise UserError for a parameter file without an entry for the node."""
    try:
        content = yaml.safe_load(file.read_text('utf-8'))
    except (OSError, ValueError, yaml.YAMLError):
        # rcl reports the error
        return
    entries = list(_entries(content, ''))
    if entries and not any(matches_node(entry, path) for entry in entries):
        raise UserError(
            f'parameter file {file} has no entry for {path}, only for {", ".join(entries)}; '
            'correct the node name in the file, or omit the file'
        )


def _entries(content: Any, place: str) -> Iterator[str]:
    """Yield the node names of the entries of a parameter file."""
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if key == 'ros__parameters':
            yield place
        else:
            yield from _entries(value, f'{place}/{str(key).strip("/")}')


def matches_node(entry: str, path: str) -> bool:
    """Return whether an entry of a parameter file, wildcards included, matches a node."""
    return _matches(entry.strip('/').split('/'), path.strip('/').split('/'))


def _matches(pattern: list[str], tokens: list[str]) -> bool:
    if not pattern:
        return not tokens
    if pattern[0] == '**':
        return any(_matches(pattern[1:], tokens[i:]) for i in range(len(tokens) + 1))
    fits = bool(tokens) and pattern[0] in ('*', tokens[0])
    return fits and _matches(pattern[1:], tokens[1:])
