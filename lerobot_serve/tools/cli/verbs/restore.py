# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve restore`: ends the drain of a slot."""

from __future__ import annotations

from lerobot_serve.tools.cli.operator_options import EXIT_STATUSES, Operator, Reason, RouterName
from lerobot_serve.tools.cli.signature import verb_of
from lerobot_serve.tools.cli.verbs.drain import run_slot_verb, Slot
from lerobot_serve.tools.operate.rule import SlotVerb
from lerobot_serve.tools.output.report import Report

HELP = 'end the drain of a slot, and forget its failures'
EXAMPLE = f'example: lerobot-serve restore b  {EXIT_STATUSES}'


def restore(
    slot: Slot, *, reason: Reason = '', router: RouterName = '', operator: Operator
) -> Report:
    """End the drain. Raises UserError, ResultUnknown."""
    return run_slot_verb(SlotVerb.RESTORE, slot, reason, router, operator)


add_arguments, main = verb_of(restore)
