# SPDX-License-Identifier: Apache-2.0
"""Recognize errors of third-party code, and format them as one line. Any thread."""

from __future__ import annotations

SHOWN_CHARACTERS = 400


def is_library_error(error: BaseException) -> bool:
    """Return whether a library failed; the panic of one in Rust is no Exception."""
    return not isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def one_line(error: BaseException) -> str:
    """Return type and message of an error as one line of bounded length."""
    return _shortened(f'{type(error).__name__}: {_line(error)}'.removesuffix(': '))


def message_line(error: BaseException) -> str:
    """Return the message of an error, or its type without one, as one line of bounded length."""
    return _shortened(_line(error) or type(error).__name__)


def _line(error: BaseException) -> str:
    return ' '.join(str(error).split())


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f'{text[:SHOWN_CHARACTERS]}...'
