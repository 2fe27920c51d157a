# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve restore`: ends the drain of a slot."""

from __future__ import annotations

import argparse

from lerobot_serve.tools.cli import operator_options, slot_verbs

HELP = 'end the drain of a slot, and forget its failures'
EXAMPLE = f'example: lerobot-serve restore b  {operator_options.EXIT_STATUSES}'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    slot_verbs.add_slot_arguments(parser)


def main(options: argparse.Namespace) -> int:
    """Return 0 when the slot is not drained. Raises UserError."""
    from lerobot_serve.tools.operate.commands import SlotVerb

    return slot_verbs.run_slot_verb(options, SlotVerb.RESTORE, at_once=False)
