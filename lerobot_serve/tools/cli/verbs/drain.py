# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve drain`: gives a slot no new episodes."""

from __future__ import annotations

import argparse

from lerobot_serve.tools.cli import operator_options, slot_verbs

HELP = 'give a slot of the router no new episodes until `restore`'
EXAMPLE = (
    f'example: lerobot-serve drain b --reason "GPU service"  {operator_options.EXIT_STATUSES}'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--now',
        action='store_true',
        help='running episodes leave with their next request instead of at their end',
    )
    slot_verbs.add_slot_arguments(parser)


def main(options: argparse.Namespace) -> int:
    """Return 0 when the slot is drained. Raises UserError."""
    from lerobot_serve.tools.operate.commands import SlotVerb

    return slot_verbs.run_slot_verb(options, SlotVerb.DRAIN, at_once=options.now)
