# SPDX-License-Identifier: Apache-2.0
"""
Checks that a policy ignores the prefix of another policy.

When the prefix of a request comes from another policy, the reply must be marked `prefix_ignored`.
One thread.
"""

from __future__ import annotations

from lerobot_serve.tools.audit.checks.check import RunCheck
from lerobot_serve.trace.format.records import RequestRecord


class PrefixPolicyCheck(RunCheck[RequestRecord]):
    """Reads the fields `prefix_policy` and `prefix_ignored` of `request`."""

    CHECKS = ('prefix',)
    RECORDS = (RequestRecord,)
    NOT_JUDGED_REASON = 'no request names the policy of its prefix'

    def observe(self, record: RequestRecord) -> None:
        source, replied = record.prefix_policy, record.policy
        if not source or not replied or record.status != 'ok':
            return
        self.tally.judged += 1
        if source != replied and not record.prefix_ignored:
            self.tally.add_violation(
                f'{replied} replied to a prefix of {source} without prefix_ignored'
            )
