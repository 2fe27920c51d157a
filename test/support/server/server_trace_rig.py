# SPDX-License-Identifier: Apache-2.0
"""A server whose trace is read as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.observability.trace_recorder import make_trace_recorder
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.traces.reader import read_records


class Told:
    """A trace of a server with the slot a, and what stands in it so far."""

    def __init__(self, folder: Path, **parameters: object) -> None:
        wanted = {'trace_images': 'hash'} | parameters
        self.parameters = ServerParameters(trace_folder=str(folder), slot='a', **wanted)
        self.now_ns = 5

    def observer(self, statistics: ServerStatistics) -> RequestObserver:
        self.recorder = make_trace_recorder(
            self.parameters,
            '/policy_server',
            statistics,
            clock=lambda: self.now_ns,
            log_warning=pytest.fail,
        )
        return RequestObserver(self.recorder)

    def read(self, *kinds: str) -> list[dict]:
        """Return the records, of some kinds or of all."""
        self.recorder.writer.drain()
        found = (record for _, record in read_records(self.recorder.writer.path))
        return [record for record in found if not kinds or record['kind'] in kinds]

    def statuses(self) -> list[tuple[int, str]]:
        return [(record['seq'], record['status']) for record in self.read('request')]
