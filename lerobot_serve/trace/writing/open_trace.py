# SPDX-License-Identifier: Apache-2.0
"""Open the trace of a node from its parameters, which are the same in every node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, Field
from pathlib import Path
import time
from typing import Any, ClassVar, Protocol

from lerobot_serve import __version__
from lerobot_serve.parameters import parameter
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.redaction import LEVELS, Redaction
from lerobot_serve.trace.format.run_files import run_name
from lerobot_serve.trace.writing.writer import TraceWriter


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


def wall_seconds() -> float:
    """Return the time of day, for header and name [s since 1970]."""
    return time.time()


class TraceParameters(Protocol):
    """The parameters of a node, including those of the trace."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def trace_folder(self) -> str: ...

    @property
    def trace_file_limit_mb(self) -> int: ...

    @property
    def trace_max_files(self) -> int: ...


def open_trace(
    node_parameters: TraceParameters,
    *,
    node: str,
    role: str,
    clock: Callable[[], int],
    log_warning: Callable[[str], None],
    redaction: Redaction | None = None,
    extra_parameters: dict[str, Any] | None = None,
    wall: Callable[[], float] = wall_seconds,
) -> TraceWriter | None:
    """
    Return the writer of the trace; None without `trace_folder`. The caller runs `run` in a thread.

    The header contains `extra_parameters` besides the parameters of the node. `wall` returns the
    seconds since 1970, for header and name. Raises ValueError.
    """
    if not node_parameters.trace_folder:
        return None
    parameters = asdict(node_parameters) | (extra_parameters or {})
    header = records.header(
        node=node,
        role=role,
        version=__version__,
        wall_s=wall(),
        now_ns=clock(),
        parameters=redaction.values(parameters) if redaction else parameters,
    )
    return TraceWriter(
        Path(node_parameters.trace_folder).expanduser(),
        run_name(node.strip('/').replace('/', '.'), wall()),
        header,
        limit_bytes=node_parameters.trace_file_limit_mb * 1_000_000,
        keep_files=node_parameters.trace_max_files,
        log_warning=log_warning,
        clock=clock,
        wall=wall,
    )
