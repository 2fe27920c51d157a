"""Errors of code that is not ours, told in one line. Any thread."""

from __future__ import annotations

SHOWN_CHARACTERS = 400


def one_line(error: BaseException) -> str:
    """Return the kind of an error and what it says, however many lines it takes for that."""
    text = f'{type(error).__name__}: {" ".join(str(error).split())}'.removesuffix(': ')
    return text if len(text) <= SHOWN_CHARACTERS else f'{text[:SHOWN_CHARACTERS]}...'
