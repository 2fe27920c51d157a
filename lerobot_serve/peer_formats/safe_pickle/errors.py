# SPDX-License-Identifier: Apache-2.0
"""The one error of the reader."""

from __future__ import annotations

# a name out of a pickle is quoted in an error up to this length
QUOTED_CHARACTERS = 80


class PickleRefused(Exception):
    """The pickle holds something that the reader does not accept; the text says what."""


def quoted(text: str) -> str:
    """Return a text out of a pickle, shortened and escaped for one line of a log."""
    return ascii(text[:QUOTED_CHARACTERS])[1:-1]
