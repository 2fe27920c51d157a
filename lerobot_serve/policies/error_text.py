# SPDX-License-Identifier: Apache-2.0
"""Format errors of third-party code as one line. Any thread."""

from __future__ import annotations

SHOWN_CHARACTERS = 400


def one_line(error: BaseException) -> str:
    """Return type and message of an error as one line of bounded length."""
    text = f'{type(error).__name__}: {" ".join(str(error).split())}'.removesuffix(': ')
    return text if len(text) <= SHOWN_CHARACTERS else f'{text[:SHOWN_CHARACTERS]}...'
