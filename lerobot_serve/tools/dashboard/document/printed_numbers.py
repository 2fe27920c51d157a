# SPDX-License-Identifier: Apache-2.0
"""Numbers and texts of the document: rounded so that noise makes no patch, and bounded. Pure."""

from __future__ import annotations

import math

TEXT_LIMIT = 1024
CUT = '...'
# a document must be valid JSON and readable: nothing measured here is larger
NUMBER_LIMIT = 1e15


def rounded(value: float | None, digits: int) -> float | None:
    """Return a number with so many decimals; None for NaN, infinity and what is out of range."""
    if value is None or not math.isfinite(value) or abs(value) > NUMBER_LIMIT:
        return None
    # adding 0.0 turns -0.0 into 0.0
    return round(value, digits) + 0.0


def significant(value: float | None, digits: int = 3) -> float | None:
    """Return a number with so many significant digits; None for what is not a number."""
    found = rounded(value, 9)
    return None if found is None else float(f'{found:.{digits}g}')


def bounded(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return a text of at most `limit` characters; bounds of messages are not enforced by ROS."""
    return text if len(text) <= limit else text[: limit - len(CUT)] + CUT
