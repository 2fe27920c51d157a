# SPDX-License-Identifier: Apache-2.0
"""Checks that no executed action is older than max_action_age_s of its edge. One thread."""

from __future__ import annotations

from lerobot_serve.tools.audit.checks.check import RunCheck
from lerobot_serve.tools.traces.fields import number
from lerobot_serve.trace.format.records import ExecutedRecord

# rounding of a nanosecond clock written in seconds
ROUNDING_S = 1e-6


class ActionAgeCheck(RunCheck[ExecutedRecord]):
    """See the module."""

    CHECKS = ('age',)
    RECORDS = (ExecutedRecord,)
    ROLES = ('edge',)
    NOT_JUDGED_REASON = 'no action of a chunk was executed'

    def observe(self, record: ExecutedRecord) -> None:
        if not record.is_played:
            return
        bound_s = number(self.run.parameters, 'max_action_age_s')
        if bound_s is None:
            self.tally.why_not = self.run.no_age_reason
            return
        self.tally.judged += 1
        age_s = record.age_s
        if age_s is None or age_s < 0:
            self.tally.add_violation(f'age_s is {age_s!r}: age of the action is unknown')
        elif age_s > bound_s + ROUNDING_S:
            self.tally.add_violation(f'{age_s:g} s old, max_action_age_s is {bound_s:g}')
