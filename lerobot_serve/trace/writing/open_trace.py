"""How a node begins its trace, from its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
import time
from typing import Any, Protocol

from lerobot_serve import __version__
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.redaction import Redaction
from lerobot_serve.trace.format.run_files import run_name
from lerobot_serve.trace.writing.writer import TraceWriter


class TraceParameters(Protocol):
    """The dataclass of a node's parameters."""

    trace_folder: str
    trace_limit_mb: int
    trace_files: int


def open_trace(
    settings: TraceParameters,
    *,
    node: str,
    role: str,
    clock: Callable[[], int],
    tell: Callable[[str], None],
    redaction: Redaction | None = None,
    more: dict[str, Any] | None = None,
) -> TraceWriter | None:
    """
    Return what writes the trace, None where no `trace_folder` is set; its `run` wants a thread.

    `more` stands among the parameters of the header. Raises ValueError.
    """
    if not settings.trace_folder:
        return None
    parameters = asdict(settings) | (more or {})
    header = records.header(
        node=node,
        role=role,
        version=__version__,
        wall_s=time.time(),
        now_ns=clock(),
        parameters=redaction.values(parameters) if redaction else parameters,
    )
    return TraceWriter(
        Path(settings.trace_folder).expanduser(),
        run_name(node.strip('/').replace('/', '.'), time.time()),
        header,
        limit_bytes=settings.trace_limit_mb * 1_000_000,
        keep_files=settings.trace_files,
        tell=tell,
        clock=clock,
    )
