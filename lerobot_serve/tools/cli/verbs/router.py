# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve router`: starts a policy router."""

from __future__ import annotations

import argparse

from lerobot_serve.tools.cli.node_flags import add_flags, NodeVerb

HELP = 'start a router, which splits episodes between two versions of a policy'
EXAMPLE = (
    'example: lerobot-serve router --slot-a /v1/policy_server --slot-b /v2/policy_server '
    '--split-percent 90'
)
# the executable handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True


def node_verb() -> NodeVerb:
    from lerobot_serve.router.parameters import RouterParameters

    return NodeVerb(
        'policy_router',
        RouterParameters,
        ('slot_a', 'slot_b', 'slot_prod', 'split_percent', 'shadow_server', 'state_folder'),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = '%(prog)s [--FLAG VALUE ...]'
    add_flags(parser, node_verb())


def main(options: argparse.Namespace) -> int:
    """Become the router. Raises UserError, ParameterError."""
    from lerobot_serve.tools.cli.node_start import start_node

    start_node(node_verb(), options, {})
