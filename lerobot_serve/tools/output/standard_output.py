# SPDX-License-Identifier: Apache-2.0
"""The standard output of a verb: may be closed, full, or of another encoding. Main thread."""

from __future__ import annotations

import io
import os
import sys


def prepare_output() -> None:
    """Let characters that a terminal does not have be printed as their codes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='backslashreplace')


def flush_output() -> None:
    """Write what is printed. Raises OSError."""
    # a process that was started without a standard output has None
    if sys.stdout:
        sys.stdout.flush()


def end_output() -> None:
    """Drop what cannot be written, so that the end of Python does not try it again."""
    with open(os.devnull, 'wb') as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
