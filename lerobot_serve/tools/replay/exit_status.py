"""What a replay says to whoever only asks whether all is well. Pure functions; any thread."""

from __future__ import annotations

from lerobot_serve.tools.replay.compare import MatchLevel
from lerobot_serve.tools.replay.engine import ReplayResult

# what counts as failed; each holds all that come after it
FAIL_ON = {
    'different': (MatchLevel.WITHIN, MatchLevel.BEYOND, MatchLevel.MISSING),
    'beyond': (MatchLevel.BEYOND, MatchLevel.MISSING),
    'missing': (MatchLevel.MISSING,),
    'never': (),
}
PASSED, FAILED, NOTHING_COMPARED = 0, 3, 4


def exit_status(result: ReplayResult, fail_on: str) -> int:
    """Return WELL, FAILED, or NOTHING where nothing could be compared."""
    if not result.requests:
        return NOTHING_COMPARED
    is_failed = any(result.count(likeness) for likeness in FAIL_ON[fail_on])
    return FAILED if is_failed else PASSED
