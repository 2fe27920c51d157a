# SPDX-License-Identifier: Apache-2.0
"""Text of traces and bags for terminals. Pure functions; any thread."""

from __future__ import annotations


def printable(value: str) -> str:
    """Return a text with unprintable characters escaped."""
    return value if value.isprintable() else repr(value)
