# SPDX-License-Identifier: Apache-2.0
"""The trace parameters, which are the same in every node."""

from __future__ import annotations

from lerobot_serve.parameters import parameter
from lerobot_serve.trace.format.redaction import LEVELS, Redaction


def trace_folder(text: str, *, on_configure: bool = False) -> str:
    """Return the parameter `trace_folder`; `text` is the content of the trace."""
    return parameter(
        '', f'folder for the trace: {text}; empty disables it', on_configure=on_configure
    )


def trace_file_limit_mb(*, on_configure: bool = False) -> int:
    """Return the parameter `trace_file_limit_mb`."""
    return parameter(
        100,
        'maximum size of one trace file',
        unit='MB',
        low=1,
        high=100_000,
        on_configure=on_configure,
    )


def trace_max_files(*, on_configure: bool = False) -> int:
    """Return the parameter `trace_max_files`."""
    return parameter(
        10,
        'number of trace files kept; the oldest are removed',
        low=2,
        high=100_000,
        on_configure=on_configure,
    )


def trace_images(*, on_configure: bool = False) -> str:
    """Return the parameter `trace_images`."""
    return parameter(
        Redaction().images,
        'redaction of images in the trace: full, a hash, or none',
        choices=LEVELS,
        on_configure=on_configure,
    )


def trace_instructions(*, on_configure: bool = False) -> str:
    """Return the parameter `trace_instructions`."""
    return parameter(
        Redaction().instructions,
        'redaction of instructions in the trace: full, a hash, or none',
        choices=LEVELS,
        on_configure=on_configure,
    )
