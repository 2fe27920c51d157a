# SPDX-License-Identifier: Apache-2.0
"""
Replace this process by the executable of a node, with the values of flags and parameter files.

Signals, output and exit status are those of the executable. Main thread.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from lerobot_serve.contract.names import namespace
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


def verb_of_node(verb: NodeVerb) -> tuple[AddArguments, Main]:
    """Return `add_arguments` and `main` of a verb that starts a node."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_flags(parser, verb)

    def main(options: argparse.Namespace) -> int:
        start_node(verb, options)

    return add_arguments, main


def start_node(verb: NodeVerb, options: argparse.Namespace) -> NoReturn:
    """Start the node. Raises UserError, ParameterError for what the node would refuse."""
    from lerobot_serve.child_process import replace_process
    from lerobot_serve.tools.processes.node_processes import executable_path

    path = str(executable_path(verb.executable))
    words = node_arguments(verb, options)
    sys.stdout.flush()
    replace_process(path, [path, *words])


def node_arguments(verb: NodeVerb, options: argparse.Namespace) -> list[str]:
    """Return the arguments of the executable. Raises UserError, ParameterError."""
    flags = given_values(options, verb)
    flags |= argument_values(options, verb, flags)
    place = check_namespace(
        '--namespace', options.namespace or namespace('', flags.get(verb.namespace_of))
    )
    name = check_token('--name', options.name) if options.name else ''
    level = check_log_level('--log-level', options.log_level) if options.log_level else ''
    values = file_values(verb, options, place) | flags
    own = {spec.name for spec in parameter_specs(verb.parameters)}
    build_parameters(
        verb.parameters,
        {k: v for k, v in values.items() if k in own or not k.startswith(STANDARD)},
    )
    return ros_arguments(verb.executable, values, name=name, namespace=place, log_level=level)


def file_values(verb: NodeVerb, options: argparse.Namespace, namespace: str) -> dict[str, Any]:
    """Return the values of the parameter files for this node. Raises UserError."""
    if not options.params_file:
        return {}
    from lerobot_serve.tools.fleet.parameter_file import values_for

    node = '/'.join(['', *filter(None, [namespace, options.name or verb.executable])])
    found: dict[str, Any] = {}
    for file in options.params_file:
        found |= values_for(file, node)
    return found
