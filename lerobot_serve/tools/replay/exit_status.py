# SPDX-License-Identifier: Apache-2.0
"""Maps the result of a replay to the exit status. Pure functions; any thread."""

from __future__ import annotations

from lerobot_serve.tools.replay.compare import MatchLevel
from lerobot_serve.tools.replay.engine import ReplayResult

# levels that count as failed; each includes all after it
FAIL_ON = {
    'different': (MatchLevel.WITHIN, MatchLevel.BEYOND, MatchLevel.MISSING),
    'beyond': (MatchLevel.BEYOND, MatchLevel.MISSING),
    'missing': (MatchLevel.MISSING,),
    'never': (),
}
PASSED, FAILED, NOTHING_COMPARED = 0, 3, 4


def exit_status(result: ReplayResult, fail_on: str) -> int:
    """Return PASSED, FAILED, or NOTHING_COMPARED."""
    if not result.requests:
        return NOTHING_COMPARED
    is_failed = any(result.count(level) for level in FAIL_ON[fail_on])
    return FAILED if is_failed else PASSED
