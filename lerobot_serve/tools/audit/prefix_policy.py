"""
No prefix crosses policies: where a request carried one of another policy than the one that
answered, the answer says that it was ignored. One thread.
"""

from __future__ import annotations

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.fields import Record, text


class PrefixPolicyCheck(RunCheck):
    """Looks for the fields `prefix_policy` and `prefix_ignored` of `request`."""

    CHECKS = ('prefix',)
    KINDS = ('request',)
    WHY_NOT = 'no request names the policy of its prefix'

    def see(self, record: Record) -> None:
        wrote, answered = text(record, 'prefix_policy'), text(record, 'policy')
        if not wrote or not answered or text(record, 'status') != 'ok':
            return
        self.tally.judged += 1
        if wrote != answered and record.get('prefix_ignored') is not True:
            self.tally.violated(
                f'{answered} answered to a prefix of {wrote}, and does not say that it ignored it'
            )
