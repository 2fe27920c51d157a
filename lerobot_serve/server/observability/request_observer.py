"""
Who is told what becomes of requests, sessions and the server: the trace and the captures, each
where it is wanted. Any thread; nothing here waits or raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
import threading
from typing import Any

from lerobot_serve import __version__
from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.inference.request_queue import QueuedRequest
from lerobot_serve.server.observability.capture_files import CaptureFiles
from lerobot_serve.server.observability.request_capture import NothingToCapture, RequestCapture
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.observability.trace_recorder import (
    make_trace_recorder,
    ServerTraceRecorder,
)
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_table import Session
from lerobot_serve.wire.chunk import Chunk

MB = 1_000_000
StartThread = Callable[[str, Callable[[], None], Callable[[], None]], threading.Thread]


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The node: its full name, monotonic nanoseconds, and how operators are told."""

    name: str
    clock: Callable[[], int]
    warn: Callable[[str], None]
    inform: Callable[[str], None]


class RequestObserver:
    """See the module; without both it tells nobody."""

    def __init__(
        self, recorder: ServerTraceRecorder | None = None, capture: RequestCapture | None = None
    ) -> None:
        self._recorder, self._capture = recorder, capture

    def start(
        self, start: StartThread, stop: threading.Event, others: list[threading.Thread]
    ) -> None:
        """Start what writes; `others` are the threads that tell of requests."""
        if self._capture:
            others = [
                *others,
                start('capture', partial(self._capture.run, stop), self._capture.wake),
            ]
        if self._recorder:
            run = partial(self._recorder.run, stop, others)
            start('trace', run, self._recorder.writer.wake)

    def losses(self) -> dict[str, int]:
        """Return what the trace itself lost, by reason."""
        return self._recorder.writer.losses if self._recorder else {}

    # requests

    def answered(self, mail: QueuedRequest, chunk: Chunk, raw: bytes, status: str = '') -> None:
        """A request has its answer `raw`; `status` says why it was not sent."""
        if self._recorder:
            self._recorder.answered(mail, chunk, raw, status)
        if self._capture:
            self._capture.answered(mail, chunk, raw)

    def lost(self, mail: QueuedRequest, reason: str) -> None:
        """A request is answered no more."""
        if self._recorder:
            self._recorder.lost(mail, reason)

    # sessions and the server

    def opened(self, session: Session) -> None:
        if self._recorder:
            self._recorder.opened(session)

    def closed(self, session: Session, why: str) -> None:
        if self._recorder:
            self._recorder.closed(session, why)

    def serves(self, served: PolicyDescription | None) -> None:
        """Another policy is served from now on, or none."""
        if self._recorder:
            self._recorder.serves(served)

    def stood(self, before: str, after: str, why: str) -> None:
        if self._recorder and before != after:
            self._recorder.stood(before, after, why)

    def changed(self, parameters: ServerParameters) -> None:
        if self._recorder:
            self._recorder.changed(parameters)

    def look(self) -> None:
        """Now and then."""
        if self._recorder:
            self._recorder.look()

    def capture(self) -> str:
        """Have what is in memory written; return where. Raises NothingToCapture."""
        if not self._capture:
            raise NothingToCapture(
                'capture_folder is empty; start the server with a folder for captures'
            )
        return str(self._capture.everything())


def make_request_observer(
    settings: Callable[[], ServerParameters], statistics: ServerStatistics, here: NodeContext
) -> RequestObserver:
    """Return who is told; `settings` are the present parameters. Raises ValueError."""
    parameters = settings()
    recorder = make_trace_recorder(
        parameters, here.name, statistics, clock=here.clock, tell=here.warn
    )
    if not parameters.capture_folder:
        return RequestObserver(recorder)
    limit_bytes = parameters.capture_limit_mb * MB
    folder = Path(parameters.capture_folder).expanduser()

    def facts() -> dict[str, Any]:
        return {'node': here.name, 'version': __version__, 'parameters': asdict(settings())}

    def told(name: str, why: str) -> None:
        if name == 'captured':
            here.inform(f'captured requests into {why}')
        else:
            statistics.drop(name)
            if why:
                here.warn(f'capturing stops, {why}')
        if recorder and why:
            recorder.captured(name, why)

    files = CaptureFiles(folder, limit_bytes, facts)
    return RequestObserver(
        recorder, RequestCapture(files, limit_bytes, told=told, clock=here.clock)
    )
