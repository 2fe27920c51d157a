# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve gateway`: starts a gateway for clients of other protocols."""

from __future__ import annotations

import argparse

from lerobot_serve.tools.cli.node_flags import add_flags, NodeVerb

HELP = 'start a gateway, so that clients of LeRobot, openpi, GR00T and HTTP use a router'
EXAMPLE = (
    'example: lerobot-serve gateway --doors lerobot --server /policy_router  | a client connects '
    'to 127.0.0.1:8702 as to its own server; it has no safety cage: only an edge has one'
)
# the executable handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True


def node_verb() -> NodeVerb:
    from lerobot_serve.gateway.parameters import GatewayParameters

    return NodeVerb(
        'gateway',
        GatewayParameters,
        ('doors', 'server', 'max_callers', 'request_timeout_s', 'codec'),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = '%(prog)s [--FLAG VALUE ...]'
    add_flags(parser, node_verb())


def main(options: argparse.Namespace) -> int:
    """Become the gateway. Raises UserError, ParameterError."""
    from lerobot_serve.tools.cli.node_start import start_node

    start_node(node_verb(), options, {})
