"""What a replay says to whoever only asks whether all is well. Pure functions; any thread."""

from __future__ import annotations

from lerobot_serve.replay.compare import Likeness
from lerobot_serve.replay.replay import Result

# what counts as failed; each holds all that come after it
FAIL_ON = {
    'different': (Likeness.WITHIN, Likeness.BEYOND, Likeness.MISSING),
    'beyond': (Likeness.BEYOND, Likeness.MISSING),
    'missing': (Likeness.MISSING,),
    'never': (),
}
WELL, FAILED, NOTHING = 0, 3, 4


def status(result: Result, fail_on: str) -> int:
    """Return WELL, FAILED, or NOTHING where nothing could be compared."""
    if not result.requests:
        return NOTHING
    is_failed = any(result.count(likeness) for likeness in FAIL_ON[fail_on])
    return FAILED if is_failed else WELL
