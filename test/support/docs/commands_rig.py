# SPDX-License-Identifier: Apache-2.0
"""
Whether a command of the documents could be run: one check for each kind, which raises
AssertionError or what the reader of the command raises.
"""

from __future__ import annotations

import contextlib
from functools import cache
from importlib import import_module, util
import re
import shlex
import sys
from types import ModuleType
from typing import Any

import yaml

from lerobot_serve.edge.robot.file import load
from lerobot_serve.parameters import build_parameters, parameter_specs
from lerobot_serve.tools.cli.installed_verbs import installed_verbs
from lerobot_serve.tools.cli.main import parser
from lerobot_serve.tools.cli.node_start import node_arguments
from lerobot_serve.tools.cli.verbs import demo, edge, gateway, learner, router, serve
from lerobot_serve.tools.reference.node_endpoints import Endpoint, NODE_ENDPOINTS, NodeEndpoint
from lerobot_serve.tools.reference.pages import NODES
from support.docs.docs_rig import REPOSITORY, SHARE

# topics that a page makes up itself
MADE_UP = {'/robot_7/action_chunk': 'the reply topic of a session opened by hand, in bags.md'}
ECHO_OPTIONS = {'--once', '--no-arr'}


# verbs that start a node
NODE_VERBS = {'serve': serve, 'edge': edge, 'router': router}
NODE_VERBS |= {'gateway': gateway, 'learner': learner}
# a file that a page makes with a command
OWN_FLEETS = (
    'better.yaml',
    'fleet.yaml',
    'north.yaml',
    'robots.yaml',
    'rollout.yaml',
    'south.yaml',
)


def check_verb(words: tuple[str, ...]) -> None:
    try:
        options = whole_parser().parse_args(words[1:])
    except SystemExit as ended:
        assert ended.code == 0, f'lerobot-serve does not take {shlex.join(words[1:])}'
        return
    if options.verb in NODE_VERBS:
        node_arguments(NODE_VERBS[options.verb].NODE, options)
    if options.verb == 'up' and options.fleet not in OWN_FLEETS:
        assert shipped(f'config/fleets/{options.fleet}.yaml')


@cache
def whole_parser() -> Any:
    return parser(installed_verbs())


def check_demo(text: str) -> None:
    given = whole_parser().parse_args(['demo', *shlex.split(text)])
    demo.checked(given.acts, given.robots, given.plan)


def check_make(words: tuple[str, ...]) -> None:
    targets = re.findall(r'^(\w+):', (REPOSITORY / 'Makefile').read_text(), re.MULTILINE)
    chosen = [word.removeprefix('BENCH=') for word in words[1:] if word.startswith('BENCH=')]
    assert {word for word in words[1:] if not word.startswith('BENCH=')} <= set(targets)
    assert all(find_benchmark(name.split()[0]) for name in chosen)


def find_benchmark(name: str) -> bool:
    return util.find_spec(f'benchmarks.{name}') is not None


def check_python(words: tuple[str, ...]) -> None:
    assert words[1] == '-m'
    assert util.find_spec(words[2])
    named = {word for word in words if '==' in word}
    assert words[2] != 'pip' or named <= pins()


@cache
def pins() -> set[str]:
    """Return the pins of requirements.txt, also those of a newer Python behind `# py3.12:`."""
    text = (REPOSITORY / 'requirements.txt').read_text()
    newer = re.findall(r'^([\w.-]+)==\S+ +# py[\d.]+: (\S+)', text, re.MULTILINE)
    return {*text.split(), *(f'{name}=={version}' for name, version in newer)}


def check_rqt(words: tuple[str, ...]) -> None:
    assert words[1] == '--perspective-file'
    assert shipped(words[2])


def shipped(path: str) -> bool:
    return (REPOSITORY / path.removeprefix('SHARE/')).exists()


def check_prefix(words: tuple[str, ...]) -> None:
    assert shlex.join(words) == SHARE


def check_launch(words: tuple[str, ...]) -> None:
    assert words[2] == 'lerobot_serve'
    known = launch_arguments(words[3])
    for word in words[4:]:
        if word == '--show-args':
            continue
        name, given, value = word.partition(':=')
        assert given and name in known, f'{words[3]} has no {name}; it has {", ".join(known)}'
        convert, spec = known[name]
        spec.check(convert(spec, value))
        assert not value.startswith('SHARE') or shipped(value)


@cache
def launch_arguments(file: str) -> dict[str, tuple[Any, Any]]:
    """Return the arguments of a launch file, also where launch is not installed."""
    with launch_as_stubs():
        launching = import_module('lerobot_serve.ros.launch_support')
        launching.launch_description = lambda file, arguments, start: arguments
        module: dict[str, Any] = {}
        code = (REPOSITORY / 'launch' / file).read_text()
        exec(compile(code, file, 'exec'), module)
        arguments = module['generate_launch_description']()
        return {each.name: (launching.convert, each.spec) for each in arguments}


@contextlib.contextmanager
def launch_as_stubs():
    """Let launch files import packages that hold anything and do nothing."""
    stubs = ('launch', 'launch.action', 'launch.actions', 'launch.logging')
    stubs += ('launch.substitution', 'launch_ros', 'launch_ros.actions', 'launch_ros.utilities')
    names = (*stubs, 'lerobot_serve.ros.launch_support')
    before = {name: sys.modules.pop(name, None) for name in names}
    for name in names[:-1]:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__getattr__ = lambda name: type(name, (), {})
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module:
                sys.modules[name] = module
        vars(import_module('lerobot_serve.ros')).pop('launch_support', None)


def check_run(words: tuple[str, ...]) -> None:
    assert words[2] == 'lerobot_serve' and words[3] in NODES and words[4] == '--ros-args'
    options = iter(words[5:])
    values = {}
    for option in options:
        assert option in ('-p', '-r', '--params-file')
        value = next(options)
        name, given, text = value.partition(':=')
        assert given or option == '--params-file'
        if option == '-p':
            values[name] = yaml.safe_load(text)
        assert option != '-r' or name in ('__ns', '__node')
    build_parameters(NODES[words[3]], values)


def check_param(words: tuple[str, ...]) -> None:
    parameters = NODES[kind_of(words[3])]
    if words[2] == 'load':
        return
    assert words[2] == 'set'
    spec = {each.name: each for each in parameter_specs(parameters)}[words[4]]
    assert spec.live or spec.on_configure
    build_parameters(parameters, {spec.name: yaml.safe_load(words[5])})


def kind_of(node: str) -> str:
    return node.rpartition('/')[2]


def offer_of(name: str, *ways: Endpoint) -> NodeEndpoint:
    """Return what has this full name. Raises AssertionError."""
    for offer in NODE_ENDPOINTS:
        below = offer.name.replace('~/', f'{offer.node}/').lstrip('/')
        if offer.kind in ways and name.endswith(f'/{below}'):
            return offer
    raise AssertionError(f'no node of ours has {name}')


def check_service(words: tuple[str, ...]) -> None:
    assert words[2] == 'call'
    offer = offer_of(words[3], Endpoint.SERVICE)
    fill(called(offer, words[4]).Request(check_fields=True), given(words[5:]))


def check_action(words: tuple[str, ...]) -> None:
    assert words[2] == 'send_goal'
    fill(
        called(offer_of(words[3], Endpoint.ACTION), words[4]).Goal(check_fields=True),
        given(words[5:]),
    )


def given(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields that are given behind a type, if any."""
    assert len(words) <= 1
    return yaml.safe_load(words[0]) if words else {}


def called(offer: NodeEndpoint, written: str) -> Any:
    """Return the type, which may be written without its folder."""
    package, folder, name = offer.type.split('/')
    assert written in (offer.type, f'{package}/{name}')
    return getattr(import_module(f'{package}.{folder}'), name)


def fill(message: Any, values: dict[str, Any]) -> Any:
    """Return the message with these fields set, each of its type."""
    kinds = message.get_fields_and_field_types()
    for name, value in values.items():
        assert name in kinds, f'{type(message).__name__} has no {name}'
        setattr(message, name, of_kind(kinds[name], value))
    return message


def of_kind(kind: str, value: Any) -> Any:
    """Return the value, with messages in the place of mappings."""
    if isinstance(value, list):
        return [of_kind(kind.removeprefix('sequence<').rstrip('>'), each) for each in value]
    if not isinstance(value, dict):
        return value
    package, name = kind.split('/')
    return fill(getattr(import_module(f'{package}.msg'), name)(check_fields=True), value)


def check_topic(words: tuple[str, ...]) -> None:
    assert words[2] in ('echo', 'hz')
    assert set(words[4:]) <= ECHO_OPTIONS
    if words[3] in MADE_UP or words[3].partition('/robot_')[2].partition('/')[2] in robot_topics():
        return
    offer_of(words[3], Endpoint.PUBLISHER, Endpoint.SUBSCRIBER)


@cache
def robot_topics() -> set[str]:
    """Return the topics of the robots in config/, relative to their namespace."""
    robots = [load(file) for file in (REPOSITORY / 'config' / 'robots').glob('*.yaml')]
    return {each.topic for r in robots for each in (*r.state, *r.cameras, r.command)}


CHECKS = {
    'lerobot-serve': check_verb,
    'make': check_make,
    'python3': check_python,
    'rqt': check_rqt,
    'ros2 launch': check_launch,
    'ros2 run': check_run,
    'ros2 param': check_param,
    'ros2 service': check_service,
    'ros2 action': check_action,
    'ros2 topic': check_topic,
    'ros2 pkg': check_prefix,
}
