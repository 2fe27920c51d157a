# SPDX-License-Identifier: Apache-2.0
"""
Writes entries to a Rerun recording: a file or a viewer. One thread.

Imports the package rerun, which takes seconds, so callers import this module in a function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
import rerun as rr

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.schema import Codec
from lerobot_serve.picture_headers import PNG
from lerobot_serve.tools.rerun_view.blueprint import make_blueprint
from lerobot_serve.tools.rerun_view.entries import (
    CONTROL_STEP,
    Entry,
    Frame,
    JOINTS,
    LogLine,
    Path,
    PLAN,
    Scalar,
    State,
    STATES,
    TIME,
    Times,
    ViewLayout,
)

GREY, ORANGE, BLUE, GREEN = (150, 150, 150), (230, 120, 30), (40, 120, 230), (40, 160, 80)
AMBER, RED, VIOLET = (240, 180, 40), (215, 50, 50), (150, 90, 200)

Color = tuple[int, int, int]


class CurveStyle(NamedTuple):
    """How a curve is drawn; the width is in points of the screen."""

    name: str
    color: Color
    width: float


JOINT_STYLES = {
    'measured': CurveStyle('measured', GREEN, 1.5),
    'wanted': CurveStyle('wanted by the policy', ORANGE, 1.5),
    'commanded': CurveStyle('commanded', BLUE, 2.0),
    PLAN: CurveStyle('planned', GREY, 0.75),
}
# state -> value -> colour; values of other states get colours from the viewer
STATE_COLORS: dict[str, dict[str, Color]] = {
    'cage': {'pass': GREEN, 'clamped': AMBER, 'held': ORANGE, 'stopped': RED},
    'ladder': {
        'policy': GREEN,
        'ramp': AMBER,
        'hold': AMBER,
        'repeat_last': AMBER,
        'zero': ORANGE,
        'safe_pose': ORANGE,
        'initial_pose': ORANGE,
        'person': VIOLET,
        'stop_service': RED,
        'no_command': GREY,
    },
    'connection': {
        'connecting': GREY,
        'streaming': GREEN,
        'degraded': AMBER,
        'stalled': ORANGE,
        'reconnecting': ORANGE,
        'dead': RED,
    },
    'paused': {'paused': VIOLET},
    'slot': {'a': BLUE, 'b': ORANGE, 'prod': GREEN},
}


def curve_style(path: Path) -> CurveStyle | None:
    """Return the style of the curve of a joint; None for other curves."""
    if path[2:3] != (JOINTS,):
        return None
    return JOINT_STYLES.get(path[4])


def state_colors(path: Path) -> dict[str, Color]:
    """Return the colours of the values of a state; empty for one without."""
    return STATE_COLORS.get(path[3], {}) if path[2:3] == (STATES,) else {}


# points of all curves; some seconds of a robot, and about a megabyte
POINTS_LIMIT = 8192


class CurveKey(NamedTuple):
    """Points of one call have the same timelines."""

    path: Path
    clock: str
    has_control_step: bool


# in the order of arrival
Points: TypeAlias = list[tuple[float, Times]]


class CurveBatches:
    """
    All points that are not yet shown, so that many become one call: a call of rerun costs as much
    for a thousand points as for one, and a robot has hundreds of points a second.
    """

    def __init__(self) -> None:
        self._batches: defaultdict[CurveKey, Points] = defaultdict(list)
        self._points = 0

    @property
    def is_full(self) -> bool:
        return self._points >= POINTS_LIMIT

    def add(self, path: Path, value: float, times: Times) -> None:
        key = CurveKey(path, times.clock, times.control_step is not None)
        self._batches[key].append((value, times))
        self._points += 1

    def take(self) -> Iterable[tuple[CurveKey, Points]]:
        """Return and forget all batches."""
        batches, self._batches, self._points = self._batches, defaultdict(list), 0
        return batches.items()


APPLICATION = 'lerobot_serve'
# depth images have millimetres
DEPTH_UNITS_A_METER = 1000.0
# a viewer that takes longer hangs
FLUSH_LIMIT_S = 30.0


class RerunSink:
    """Owns the recording; `close` ends it. Methods raise OSError when viewer or disk are gone."""

    def __init__(
        self,
        recording: rr.RecordingStream,
        destination: str,
        *,
        check: Callable[[bool], None] = lambda _: None,
        window_s: float = 0.0,
    ) -> None:
        """
        `destination` is the name of the file or viewer. `check` raises OSError if the viewer is
        gone, because rerun drops what it cannot send; it is called with True after an error.
        `window_s` is the period that plots show before the cursor, 0: all.
        """
        self._recording, self._check, self._window_s = recording, check, window_s
        self.destination = destination
        self._curves = CurveBatches()
        self._styled: set[Path] = set()
        self._layout_version = 0
        self._timelines: set[str] = set()

    def show(self, entries: Iterable[Entry], layout: ViewLayout) -> None:
        """Take entries; curves appear with the next `flush`, or when there are many points."""
        for path, value, times in entries:
            if isinstance(value, Scalar):
                self._curves.add(path, value.value, times)
            else:
                self._show_one(path, value, times)
        if self._curves.is_full:
            self._send_all(layout)

    def flush(self, layout: ViewLayout) -> None:
        """
        Show all points, and a new view if `layout` has more parts than before; wait until the
        viewer or the file has everything.
        """
        self._send_all(layout)
        self._check(False)
        try:
            self._recording.flush(timeout_sec=FLUSH_LIMIT_S)
        except RuntimeError as error:
            # rerun has no type of its own for a viewer that is gone or a disk that is full
            self._check(True)
            raise OSError(f'Rerun stopped ({error}); its own message has the reason') from None

    def close(self, layout: ViewLayout) -> None:
        """Show what is left and end the recording; a file is whole then."""
        self.flush(layout)
        self._recording.disconnect()

    def abort(self) -> None:
        """End the recording after an error."""
        self._recording.disconnect()

    def _send_all(self, layout: ViewLayout) -> None:
        for key, points in self._curves.take():
            self._send_curve(key, points)
        if layout.version != self._layout_version:
            self._layout_version = layout.version
            self._recording.send_blueprint(make_blueprint(layout, window_s=self._window_s))

    def _send_curve(self, key: CurveKey, points: Points) -> None:
        path = entity(key.path)
        style = curve_style(key.path)
        if style and self._is_first(key.path):
            self._recording.log(
                path,
                rr.SeriesLines(names=style.name, colors=[style.color], widths=style.width),
                static=True,
            )
        columns = rr.Scalars.columns(scalars=np.array([value for value, _ in points], np.float64))
        indexes = _indexes(key, [times for _, times in points])
        self._recording.send_columns(path, indexes=indexes, columns=columns)

    def _show_one(self, path: Path, value: State | LogLine | Frame, times: Times) -> None:
        at = entity(path)
        colors = state_colors(path)
        if colors and self._is_first(path):
            self._recording.log(
                at,
                rr.StateConfiguration(values=list(colors), colors=list(colors.values())),
                static=True,
            )
        self._set_times(times)
        self._recording.log(at, archetype(value))

    def _set_times(self, times: Times) -> None:
        recording = self._recording
        timelines = {TIME, times.clock, CONTROL_STEP if times.control_step is not None else ''}
        if not self._timelines <= timelines:
            # slow
            recording.reset_time()
        self._timelines = timelines
        recording.set_time(TIME, timestamp=np.datetime64(times.time_ns, 'ns'))
        if times.clock:
            recording.set_time(times.clock, timestamp=np.datetime64(times.stamp_ns, 'ns'))
        if times.control_step is not None:
            recording.set_time(CONTROL_STEP, sequence=times.control_step)

    def _is_first(self, path: Path) -> bool:
        if path in self._styled:
            return False
        self._styled.add(path)
        return True


def entity(path: Path) -> str:
    """Return an entity path with each part escaped."""
    return rr.new_entity_path(list(path))


def archetype(value: State | LogLine | Frame) -> Any:
    """Return a value as Rerun has it."""
    if isinstance(value, State):
        return rr.StateChange(state=value.value)
    if isinstance(value, LogLine):
        return rr.TextLog(value.text, level=value.level.value)
    return frame_archetype(value.image)


def frame_archetype(image: Image | NDArray[Any] | bytes) -> Any:
    """Return a checked frame: a JPEG or PNG as it is, raw pixels, or depth."""
    if isinstance(image, bytes):
        kind = 'png' if image.startswith(PNG) else 'jpeg'
        return rr.EncodedImage(contents=image, media_type=f'image/{kind}')
    if isinstance(image, Image) and image.codec == Codec.JPEG:
        return rr.EncodedImage(contents=bytes(image.data), media_type='image/jpeg')
    frame = image_codec.decode(image) if isinstance(image, Image) else image
    if frame.itemsize > 1 and frame.shape[2] == 1:
        # of floats in metres
        meter = DEPTH_UNITS_A_METER if frame.itemsize == 2 else 1.0
        return rr.DepthImage(frame[:, :, 0], meter=meter)
    return rr.Image(frame[:, :, 0] if frame.shape[2] == 1 else frame)


def _indexes(key: CurveKey, times: Sequence[Times]) -> list[rr.TimeColumn]:
    clocks = {TIME: [each.time_ns for each in times]}
    if key.clock:
        clocks[key.clock] = [each.stamp_ns for each in times]
    indexes = [
        rr.TimeColumn(name, timestamp=np.array(stamps, 'datetime64[ns]'))
        for name, stamps in clocks.items()
    ]
    if key.has_control_step:
        steps = np.array([each.control_step for each in times])
        indexes.append(rr.TimeColumn(CONTROL_STEP, sequence=steps))
    return indexes
