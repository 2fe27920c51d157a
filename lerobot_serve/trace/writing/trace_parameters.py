"""The parameters of a trace, which every node has alike."""

from __future__ import annotations

from lerobot_serve.parameters import parameter
from lerobot_serve.trace.format.redaction import LEVELS, Redaction


def trace_folder(text: str, *, on_configure: bool = False) -> str:
    """Return the parameter `trace_folder`; `text` says what the trace tells."""
    return parameter(
        '', f'folder for the trace, which tells {text}; empty for none', on_configure=on_configure
    )


def trace_file_limit_mb(*, on_configure: bool = False) -> int:
    """Return the parameter `trace_limit_mb`."""
    return parameter(
        100,
        'size of one file of the trace',
        unit='MB',
        low=1,
        high=100_000,
        on_configure=on_configure,
    )


def trace_max_files(*, on_configure: bool = False) -> int:
    """Return the parameter `trace_files`."""
    return parameter(
        10,
        'files of a trace that are kept; the oldest are removed',
        low=2,
        high=100_000,
        on_configure=on_configure,
    )


def trace_images(*, on_configure: bool = False) -> str:
    """Return the parameter `trace_images`."""
    return parameter(
        Redaction().images,
        'what the trace keeps of images: full, a hash, or none',
        choices=LEVELS,
        on_configure=on_configure,
    )


def trace_instructions(*, on_configure: bool = False) -> str:
    """Return the parameter `trace_instructions`."""
    return parameter(
        Redaction().instructions,
        'what the trace keeps of instructions: full, a hash, or none',
        choices=LEVELS,
        on_configure=on_configure,
    )
