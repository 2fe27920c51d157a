# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve learner`: starts a learner."""

from __future__ import annotations

import argparse

from lerobot_serve.tools.cli.node_flags import add_flags, NodeVerb

HELP = 'start a learner, which trains new versions of a policy on recorded episodes'
EXAMPLE = (
    'example: lerobot-serve learner --parent act_so101 --trainer ~/trainer.yaml '
    '--episode-folders ~/bags  | a round begins after 50 new episodes; versions list shows the '
    'versions'
)
# the executable handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True


def node_verb() -> NodeVerb:
    from lerobot_serve.learner.parameters import LearnerParameters

    return NodeVerb(
        'learner',
        LearnerParameters,
        ('parent', 'trainer', 'episode_folders', 'episodes_per_round', 'store', 'folder'),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = '%(prog)s [--FLAG VALUE ...]'
    add_flags(parser, node_verb())


def main(options: argparse.Namespace) -> int:
    """Become the learner. Raises UserError, ParameterError."""
    from lerobot_serve.tools.cli.node_start import start_node

    start_node(node_verb(), options, {})
