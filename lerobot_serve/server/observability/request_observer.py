# SPDX-License-Identifier: Apache-2.0
"""
Pass events of requests, sessions and the server to the trace and to request capture.

Any thread; no method blocks or raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
import threading
from typing import Any

from lerobot_serve import __version__
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.inference.request_queue import QueuedRequest
from lerobot_serve.server.observability.request_capture import (
    CaptureFiles,
    NothingToCapture,
    RequestCapture,
)
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.observability.trace_recorder import (
    make_trace_recorder,
    ServerTraceRecorder,
)
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_table import Session

MB = 1_000_000
StartThread = Callable[[str, Callable[[], None], Callable[[], None]], threading.Thread]


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The node: full name, monotonic clock [ns] and log functions."""

    name: str
    clock: Callable[[], int]
    log_warning: Callable[[str], None]
    log_info: Callable[[str], None]


class RequestObserver:
    """See the module; without recorder and capture it does nothing."""

    def __init__(
        self, recorder: ServerTraceRecorder | None = None, capture: RequestCapture | None = None
    ) -> None:
        self._recorder, self._capture = recorder, capture

    def start_threads(
        self, start: StartThread, stop: threading.Event, producers: list[threading.Thread]
    ) -> None:
        """Start the writer threads; `producers` are the threads that report requests."""
        if self._capture:
            producers = [
                *producers,
                start('capture', partial(self._capture.run, stop), self._capture.wake),
            ]
        if self._recorder:
            run = partial(self._recorder.run, stop, producers, self._recorder.drops)
            start('trace', run, self._recorder.writer.wake)

    def trace_losses(self) -> dict[str, int]:
        """Return the number of records the trace lost, by reason."""
        return self._recorder.writer.losses if self._recorder else {}

    # requests

    def on_reply(self, queued: QueuedRequest, chunk: Chunk, raw: bytes, status: str = '') -> None:
        """A request has its reply `raw`; `status` is set if the reply was not sent."""
        if self._recorder:
            self._recorder.on_reply(queued, chunk, raw, status)
        if self._capture:
            self._capture.on_reply(queued, chunk, raw)

    def on_dropped(self, queued: QueuedRequest, reason: str) -> None:
        """A request is dropped without a reply."""
        if self._recorder:
            self._recorder.on_dropped(queued, reason)

    # sessions and the server

    def on_session_opened(self, session: Session) -> None:
        if self._recorder:
            self._recorder.on_session_opened(session)

    def on_session_closed(self, session: Session, why: str) -> None:
        if self._recorder:
            self._recorder.on_session_closed(session, why)

    def on_policy_changed(self, description: PolicyDescription | None) -> None:
        """The served policy changed; None if no policy is served."""
        if self._recorder:
            self._recorder.on_policy_changed(description)

    def on_swapped(self, before: str, description: PolicyDescription) -> None:
        """Another policy has replaced the served one under open sessions."""
        if self._recorder:
            self._recorder.on_swapped(before, description)

    def on_swap_failed(self, why: str) -> None:
        """The served policy was not replaced."""
        if self._recorder:
            self._recorder.on_swap_failed(why)

    def on_state_changed(self, before: str, after: str, why: str) -> None:
        if self._recorder and before != after:
            self._recorder.state('server', before, after, why)

    def on_parameters_changed(self, parameters: ServerParameters) -> None:
        if self._recorder:
            self._recorder.on_parameters_changed(parameters)

    def poll(self) -> None:
        """Record the drops since the last call; called periodically."""
        if self._recorder:
            self._recorder.record_drops()

    def capture(self) -> str:
        """Write the requests in memory; return the path. Raises NothingToCapture."""
        if not self._capture:
            raise NothingToCapture('capture_folder is empty; set it and restart the server')
        return str(self._capture.capture_all())


def make_request_observer(
    settings: Callable[[], ServerParameters], statistics: ServerStatistics, context: NodeContext
) -> RequestObserver:
    """Return the observer; `settings` returns the current parameters. Raises ValueError."""
    parameters = settings()
    recorder = make_trace_recorder(
        parameters, context.name, statistics, clock=context.clock, log_warning=context.log_warning
    )
    if not parameters.capture_folder:
        return RequestObserver(recorder)
    limit_bytes = parameters.max_capture_mb * MB
    folder = Path(parameters.capture_folder).expanduser()

    def metadata() -> dict[str, Any]:
        return {'node': context.name, 'version': __version__, 'parameters': asdict(settings())}

    def on_event(name: str, why: str) -> None:
        if name == 'captured':
            context.log_info(f'captured requests into {why}')
        else:
            statistics.record_drop(name)
            if why:
                context.log_warning(f'Capture paused: {why}')
        if recorder and why:
            recorder.incident(name, why)

    files = CaptureFiles(folder, limit_bytes, metadata)
    return RequestObserver(
        recorder, RequestCapture(files, limit_bytes, on_event=on_event, clock=context.clock)
    )
