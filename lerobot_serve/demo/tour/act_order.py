# SPDX-License-Identifier: Apache-2.0
"""The acts of the demo: what each claims, and which it needs before it. Plain; any thread."""

from __future__ import annotations

from collections.abc import Iterable

# act -> its claim, in order
ACT_CLAIMS = {
    'serve': 'robots without weights execute chunks',
    'shadow': 'v2 runs in shadow and controls no robot',
    'kill': 'a server is killed and no robot stops',
    'canary': 'v2 is promoted step by step',
    'broken': 'v3 is rolled back automatically',
}
ACT_REQUIREMENTS = {'canary': {'shadow'}, 'broken': {'shadow', 'canary'}}


def ordered_acts(names: Iterable[str]) -> list[str]:
    """Return the named acts with those that they require, in order."""
    wanted = {'serve', *names}
    wanted = wanted.union(*(ACT_REQUIREMENTS.get(name, ()) for name in wanted))
    return [name for name in ACT_CLAIMS if name in wanted]
