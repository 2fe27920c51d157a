# SPDX-License-Identifier: Apache-2.0
"""A capture whose thread is the test's, and a server that fills it."""

from __future__ import annotations

from pathlib import Path
import threading

import numpy as np

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.server.observability.request_capture import CaptureFiles, RequestCapture
from lerobot_serve.server.observability.request_observer import RequestObserver
from support.server.server_core_rig import request, Rig
from support.server.worker_rig import gives, ROWS

NAN = np.full_like(ROWS, np.nan)
WALL_S = 1_750_000_000.25
LIMIT = 1_000_000
S = 1_000_000_000


class Captured:
    """A capture whose thread is the test's, with what it told."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT) -> None:
        self.folder, self.told, self.now_ns = folder, [], 0
        self.wall_s = WALL_S
        self.files = CaptureFiles(folder, limit_bytes, lambda: {'node': '/policy_server'})
        self.capture = RequestCapture(
            self.files,
            limit_bytes,
            on_event=lambda *what: self.told.append(what),
            clock=lambda: self.now_ns,
            wall_clock=self.tick,
        )

    def tick(self) -> float:
        self.wall_s += 0.001
        return self.wall_s

    def write(self) -> None:
        """Write what is due, as the thread does until its end."""
        stop = threading.Event()
        stop.set()
        self.capture.wake()
        self.capture.run(stop)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob('*.safetensors'))


def rig_of(captured: Captured, predict=None, **changes: object) -> Rig:
    return Rig(predict, observer=lambda _: RequestObserver(None, captured.capture), **changes)


def ask(rig: Rig, number: int = 1, **header: object) -> Chunk:
    rig.core.enqueue(request(number, **header), 0)
    (chunk,) = rig.step()
    return chunk


def fails_at(seqs: set[int], how):
    """Return a policy that fails at these requests; it counts them from 1."""
    seen = iter(range(1, 1000))
    return lambda asked: how(asked) if next(seen) in seqs else gives(ROWS)(asked)
