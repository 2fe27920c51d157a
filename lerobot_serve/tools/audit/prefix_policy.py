# SPDX-License-Identifier: Apache-2.0
"""
Checks that a policy ignores the prefix of another policy.

When the prefix of a request comes from another policy, the reply must be marked `prefix_ignored`.
One thread.
"""

from __future__ import annotations

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.fields import Record, text


class PrefixPolicyCheck(RunCheck):
    """Reads the fields `prefix_policy` and `prefix_ignored` of `request`."""

    CHECKS = ('prefix',)
    KINDS = ('request',)
    NOT_JUDGED_REASON = 'no request names the policy of its prefix'

    def observe(self, record: Record) -> None:
        wrote, answered = text(record, 'prefix_policy'), text(record, 'policy')
        if not wrote or not answered or text(record, 'status') != 'ok':
            return
        self.tally.judged += 1
        if wrote != answered and record.get('prefix_ignored') is not True:
            self.tally.add_violation(
                f'{answered} replied to a prefix of {wrote} without prefix_ignored'
            )
