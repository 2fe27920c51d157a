# SPDX-License-Identifier: Apache-2.0
"""
Turn messages of one robot into what its window shows. `take` and the callbacks of the thread
`robots`; `on_request` any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
import threading

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import ExecutedAction
from lerobot_serve.contract.schema import Status
from lerobot_serve.tools.bags.service_events import read_open_session
from lerobot_serve.tools.dashboard.document.printed_numbers import bounded, rounded
from lerobot_serve.tools.dashboard.robot.last_request import camera_names, LastRequests
from lerobot_serve.tools.dashboard.robot.window import (
    Executed,
    Heard,
    RobotEvent,
    series,
    ShownPlan,
)

DIGITS, NAMES, PLAN_ROWS = 4, 256, 1000
# of a chunk whose control rate is not known yet
DEFAULT_STEP_MS = 33.3
# further apart: a clock was set, or messages waited
RESYNC_MS = 1000


class RobotMessages:
    """See the module; `malformed` counts what is no such message."""

    def __init__(self) -> None:
        self.requests = LastRequests()
        self.malformed = 0
        self._time = TimeBase()
        self._heard = Heard()
        self._shown_request: int | None = None
        self._step_ms = DEFAULT_STEP_MS
        self._lock = threading.Lock()

    def on_command(self, raw: bytes, now_ms: int) -> None:
        """Add a command."""
        try:
            command = decode(ExecutedAction, raw)
        except Malformed:
            self.malformed += 1
            return
        self._heard.executed.append(
            Executed(
                self._time.place(command.stamp.ns / 1e6, now_ms),
                numbers(command.commanded),
                numbers(command.raw),
                command.rung.name,
                command.cage_result.name,
                bounded(command.reason),
            )
        )

    def note(self, now_ms: int, kind: str, text: str) -> None:
        """Add an event that no message shows."""
        self._heard.events.append(RobotEvent(now_ms, kind, bounded(text)))

    def on_chunk(self, raw: bytes, client_id: str, now_ms: int) -> None:
        """Add a chunk; one of another robot is ignored."""
        try:
            chunk = wire_chunk.decode(raw)
        except Malformed:
            self.malformed += 1
            return
        if chunk.client_id != client_id:
            return
        if chunk.status != Status.OK:
            text = f'reply {chunk.status}: {chunk.status_text}'
            self._heard.events.append(RobotEvent(now_ms, 'reply', bounded(text)))
            return
        rows = [numbers(row) for row in chunk.robot[:PLAN_ROWS].tolist()]
        times = [int(now_ms + index * self._step_ms) for index in range(len(rows))]
        self._heard.plan = ShownPlan(times, series(rows), bounded(chunk.policy), chunk.header.seq)

    def on_session(self, raw: bytes, client_id: str) -> None:
        """Note the names of the joints and the control rate, of the robot's own sessions."""
        try:
            request = read_open_session(raw)
        except Malformed:
            self.malformed += 1
            return
        if request and request.client_id == client_id:
            names = request.action_names[:NAMES]
            self._heard.names = tuple(bounded(name, 64) for name in names)
            if request.fps > 0:
                self._step_ms = 1000 / request.fps

    def on_request(self, raw: bytes) -> None:
        """Keep a request; it is decoded when a viewer requests it. Any thread."""
        try:
            self.requests.put(read_envelope(raw).header.seq, raw)
        except Malformed:
            with self._lock:
                self.malformed += 1

    def take(self) -> Heard:
        """Return what was heard since the last call."""
        heard, self._heard = self._heard, Heard()
        newest = self.requests.newest()
        if newest and newest[0] != self._shown_request:
            self._shown_request = newest[0]
            try:
                heard.images = newest[0], camera_names(newest[1])
            except Malformed:
                with self._lock:
                    self.malformed += 1
        return heard


def numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return values of joints as the page shows them."""
    return tuple(rounded(float(value), DIGITS) for value in values)


class TimeBase:
    """
    Keeps the distances between the stamps of one robot; only how far its clock is off is measured,
    by when messages arrive. The stamps are for a plot and are not compared with another clock.
    """

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def place(self, stamp_ms: float, arrived_ms: float) -> int:
        """Return the time of a stamp on the steady clock [ms]."""
        offset_ms = arrived_ms - stamp_ms
        if self._offset_ms is None or abs(offset_ms - self._offset_ms) > RESYNC_MS:
            self._offset_ms = offset_ms
        # what arrives sooner than ever shows that the others were late
        self._offset_ms = min(self._offset_ms, offset_ms)
        return int(stamp_ms + self._offset_ms)
