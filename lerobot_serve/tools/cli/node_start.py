# SPDX-License-Identifier: Apache-2.0
"""
Replace this process by the executable of a node, with the values of flags and parameter files.

Signals, output and exit status are those of the executable. Main thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
import sys
from typing import Any, NoReturn

from lerobot_serve.contract.names import namespace
from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.parameters import build_parameters, parameter_specs
from lerobot_serve.tools.cli.node_flags import (
    add_flags,
    argument_values,
    given_values,
    NodeVerb,
)
from lerobot_serve.tools.cli.signature import AddArguments, Main
from lerobot_serve.tools.fleet.process import (
    check_log_level,
    check_namespace,
    check_token,
    ros_arguments,
)

# the parameters of every ROS node, and of its topics
STANDARD = ('use_sim_time', 'start_type_description_service', 'qos_overrides.')

# of the words in place of a start; no option of a verb has this name
STEP = 'step of node'


def verb_of_node(
    verb: NodeVerb, instead: Mapping[str, Callable[[Any, str], int]] | None = None
) -> tuple[AddArguments, Main]:
    """
    Return `add_arguments` and `main` of a verb that starts a node. `instead` are words and what
    is done in place of a start, with the parameters and the full name of the node.
    """
    steps = instead or {}

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_flags(parser, verb)
        if steps:
            texts = [f'{words}: {step.__doc__}' for words, step in steps.items()]
            parser.usage = f'%(prog)s [{" | ".join(steps)}] [--FLAG VALUE ...]'
            parser.add_argument(STEP, metavar='STEP', nargs='*', help=' '.join(texts))

    def main(options: argparse.Namespace) -> int:
        words = ' '.join(getattr(options, STEP, ()))
        if not words:
            start_node(verb, options)
        if words not in steps:
            raise WrongCommandLine(
                f'{words!r} is not a step of this verb; it has {", ".join(steps)}'
            )
        values, place = node_values(verb, options)
        node = full_name(verb, options, place)
        return steps[words](build_parameters(verb.parameters, _own(verb, values)), node)

    return add_arguments, main


def start_node(verb: NodeVerb, options: argparse.Namespace) -> NoReturn:
    """Start the node. Raises UserError, ParameterError for what the node would refuse."""
    from lerobot_serve.child_process import replace_process
    from lerobot_serve.tools.processes import executable_path

    path = str(executable_path(verb.executable))
    words = node_arguments(verb, options)
    sys.stdout.flush()
    replace_process(path, [path, *words])


def node_arguments(verb: NodeVerb, options: argparse.Namespace) -> list[str]:
    """Return the arguments of the executable. Raises UserError, ParameterError."""
    values, place = node_values(verb, options)
    level = check_log_level('--log-level', options.log_level) if options.log_level else ''
    build_parameters(verb.parameters, _own(verb, values))
    return ros_arguments(
        verb.executable, values, name=options.name, namespace=place, log_level=level
    )


def node_values(verb: NodeVerb, options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return the values of files and flags, and the namespace. Raises UserError."""
    flags = given_values(options, verb)
    flags |= argument_values(options, verb, flags)
    place = check_namespace(
        '--namespace', options.namespace or namespace('', flags.get(verb.namespace_of))
    )
    if options.name:
        check_token('--name', options.name)
    return file_values(verb, options, place) | flags, place


def _own(verb: NodeVerb, values: dict[str, Any]) -> dict[str, Any]:
    """Return what is not of every node; another name is refused."""
    own = {spec.name for spec in parameter_specs(verb.parameters)}
    return {k: v for k, v in values.items() if k in own or not k.startswith(STANDARD)}


def full_name(verb: NodeVerb, options: argparse.Namespace, namespace: str) -> str:
    """Return the full name of the node."""
    return '/'.join(['', *filter(None, [namespace, options.name or verb.executable])])


def file_values(verb: NodeVerb, options: argparse.Namespace, namespace: str) -> dict[str, Any]:
    """Return the values of the parameter files for this node. Raises UserError."""
    if not options.params_file:
        return {}
    from lerobot_serve.tools.fleet.fleet_file import values_for

    node = full_name(verb, options, namespace)
    found: dict[str, Any] = {}
    for file in options.params_file:
        found |= values_for(file, node)
    return found
