# SPDX-License-Identifier: Apache-2.0
"""
Maps the messages of one robot to entries: what it saw, wanted, commanded, and why. One thread.

Commands decide: the states `ladder`, `cage`, `policy` and `slot` come from ExecutedAction, and
from other messages only while no command comes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from math import nan
from typing import TypeVar

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import (
    EdgeState,
    EpisodeOutcome,
    ExecutedAction,
    OpenSessionRequest,
    RoutingDecision,
    ShadowDivergence,
)
from lerobot_serve.contract.schema import Codec, Flag, Status
from lerobot_serve.contract.types import Constants
from lerobot_serve.picture_headers import check_picture, UnreadablePicture
from lerobot_serve.tools.bags.message import (
    BagMessage,
    CompressedImage,
    pixels_of,
    RAW_TYPE,
    RawImage,
)
from lerobot_serve.tools.rerun_view.entries import (
    because,
    CAMERAS,
    Count,
    Emit,
    Frame,
    Level,
    PartMapping,
    path_part,
    PLAN,
    QUEUE,
    REQUEST,
    ROBOTS,
    Scalar,
    Times,
)
from lerobot_serve.tools.rerun_view.joint_values import (
    COMMANDED,
    JointValues,
    LANES,
    MEASURED,
    PlanLanes,
    WANTED,
)

SECOND_NS = 10**9
CAMERAS_LIMIT, PLAN_ROWS_LIMIT = 16, 1000
FPS_MIN, FPS_MAX = 0.01, 10_000.0
# of the numbers of a timeline
CONTROL_STEP_MAX = (1 << 63) - 1
# requests and chunks of which the other half, or a copy, may still come
RECENT = 32
# without a command for so long, the state of the edge says what the ladder does
SILENCE_NS = SECOND_NS // 2
# a cage that changes its result in each step would fill the log
CAGE_EVENT_NS = SECOND_NS
FLAG_TEXTS = {
    Flag.POLICY_CHANGED: 'another policy replies; the prefix is dropped',
    Flag.PREFIX_IGNORED: 'the policy ignored a prefix of another policy',
    Flag.STATE_LOST: 'the server had lost the hidden state of this session',
}
Cage, State, Rung = ExecutedAction.CageResult, EdgeState.State, EdgeState.Rung
CAGE_LEVELS = {Cage.PASS: Level.INFO, Cage.CLAMPED: Level.WARN, Cage.HELD: Level.WARN}
CONNECTION_LEVELS = {
    State.CONNECTING: Level.INFO,
    State.STREAMING: Level.INFO,
    State.DEAD: Level.ERROR,
}

Key = tuple[int, int]
K = TypeVar('K')
T = TypeVar('T')


class RobotMapping(PartMapping):
    """Calls `emit` for each entry and `count` for what cannot be shown."""

    def __init__(self, client_id: str, emit: Emit, count: Count) -> None:
        super().__init__(ROBOTS, client_id, emit, count)
        self._joints = JointValues(self.path, emit, count)
        self._lanes = PlanLanes()
        self._cameras: set[str] = set()
        self._requests: OrderedDict[Key, int] = OrderedDict()
        self._replies: OrderedDict[Key, bool] = OrderedDict()
        self._plans: OrderedDict[Key, Chunk] = OrderedDict()
        self._drops: dict[str, int] | None = None
        self._outcomes: OrderedDict[str, str] = OrderedDict()
        self._control_step: int | None = None
        self._task = ''
        self._last_command_ns = self._last_cage_event_ns = -SECOND_NS

    def on_session(self, opened: OpenSessionRequest) -> None:
        self._joints.set_names(opened)

    def finish(self) -> None:
        """Show the values whose names never came."""
        self._joints.release()

    # what is commanded

    def on_executed(self, action: ExecutedAction, time_ns: int) -> None:
        if action.control_step > CONTROL_STEP_MAX:
            raise Malformed('out_of_range', f'control step {action.control_step}')
        times = Times(time_ns, self._clock, action.stamp.ns, action.control_step)
        self._control_step, self._last_command_ns = action.control_step, time_ns
        self._joints.add(WANTED, action.raw, times)
        self._joints.add(COMMANDED, action.commanded, times)
        self._on_cage(action, times)
        self._on_rung(action.rung, action.reason, times)
        if action.policy:
            self._on_policy(action.policy, action.slot, times)
            self._emit((QUEUE, 'action_age_s'), Scalar(action.age_s), times)
            self._show_plan(action, times)

    def _on_cage(self, action: ExecutedAction, times: Times) -> None:
        if not self._change('cage', action.cage_result.word, times):
            return
        if times.time_ns - self._last_cage_event_ns < CAGE_EVENT_NS:
            self._count('cage events within a second of another one; the state cage has them')
            return
        self._last_cage_event_ns = times.time_ns
        level = CAGE_LEVELS.get(action.cage_result, Level.ERROR)
        self._event(because(f'cage: {action.cage_result.word}', action.reason), times, level)

    def _on_rung(self, rung: Constants, reason: str, times: Times) -> None:
        if self._change('ladder', rung.word, times):
            level = Level.INFO if rung == Rung.POLICY else Level.WARN
            # most reasons begin with the rung
            why = reason.removeprefix(rung.word).lstrip(': ')
            self._event(because(f'ladder: {rung.word}', why), times, level)

    def _on_policy(self, policy: str, slot: str, times: Times) -> None:
        is_other_policy = self._change('policy', policy, times)
        if self._change('slot', slot, times) or is_other_policy:
            self._event(f'policy {policy} in slot {slot or "(none)"}', times)

    def _show_plan(self, action: ExecutedAction, times: Times) -> None:
        """Show the rest of a chunk from its first executed row on."""
        chunk = self._plans.pop((action.session_epoch, action.seq), None)
        names = self._joints.names
        if chunk is None or not chunk.robot.size:
            return
        if names is None or not FPS_MIN <= names.fps <= FPS_MAX:
            self._count('plans without a control rate')
            return
        rows = chunk.robot[action.chunk_row : action.chunk_row + PLAN_ROWS_LIMIT]
        period_ns = round(SECOND_NS / names.fps)
        lane = self._lanes.take(times.time_ns, times.time_ns + len(rows) * period_ns)
        if lane is None:
            self._count(f'plans that overlap {LANES} others')
            return
        for step in range(len(rows) + 1):
            later_ns = step * period_ns
            at = Times(times.time_ns + later_ns, self._clock, times.stamp_ns + later_ns)
            # NaN ends the line, or it would go on to the next chunk of this lane
            values = rows[step].tolist() if step < len(rows) else [nan] * rows.shape[1]
            for name, value in zip(self._joints.action_names(rows.shape[1]), values, strict=False):
                path = self._joints.path(name, PLAN, str(lane))
                self._emit_at(path, Scalar(value), at)

    # what is requested

    def on_observation(self, observation: Observation, time_ns: int) -> None:
        key = observation.header.session_epoch, observation.header.seq
        if not _is_new(self._requests, key, time_ns):
            self._count('copies of requests, behind a router')
            return
        times = self._times(time_ns)
        if observation.task != self._task:
            self._task = observation.task
            self._event(f'task: {observation.task or "(none)"}', times)
        self._joints.add(MEASURED, observation.state[-1], times)
        self._emit((QUEUE, 'at_request_s'), Scalar(observation.queue_remaining_s), times)
        for image in observation.images:
            self._on_image(image, times)

    def _on_image(self, image: Image, times: Times) -> None:
        if image.steps_back:
            self._count('earlier frames of histories')
            return
        try:
            check_frame(image)
        except Malformed:
            self._count('unreadable frames')
            return
        self.on_frame(image.name, Frame(image), times)

    def on_frame(self, name: str, frame: Frame, times: Times) -> None:
        """Show a frame of a request, or one that was recorded on the topic `name`."""
        if name not in self._cameras and len(self._cameras) >= CAMERAS_LIMIT:
            self._count(f'frames of cameras beyond the first {CAMERAS_LIMIT}')
            return
        self._cameras.add(name)
        self._emit((CAMERAS, path_part(name)), frame, times)

    def on_chunk(self, chunk: Chunk, time_ns: int) -> None:
        key = chunk.header.session_epoch, chunk.header.seq
        if not _is_new(self._replies, key, True):
            self._count('copies of replies, behind a router')
            return
        times = self._times(time_ns)
        for name in ('queue_wait_ms', 'processing_ms', 'inference_ms'):
            self._emit((REQUEST, name), Scalar(getattr(chunk, name)), times)
        if key in self._requests and self._drops is None:
            # no state of the edge, which measures the round trip itself
            seen_ms = (time_ns - self._requests[key]) / 1e6
            self._emit((REQUEST, 'from_request_to_reply_ms'), Scalar(seen_ms), times)
        if chunk.status != Status.OK:
            text = f'request {chunk.header.seq}: {Status(chunk.status).word}'
            self._event(because(text, chunk.status_text), times, Level.WARN)
            return
        for flag, text in FLAG_TEXTS.items():
            if chunk.header.flags & flag:
                self._event(text, times, Level.WARN)
        if self._is_silent(time_ns):
            self._on_policy(chunk.policy, chunk.slot, times)
        _is_new(self._plans, key, chunk)

    # what the edge, the router and the judge report

    def on_state(self, state: EdgeState, time_ns: int) -> None:
        times = Times(time_ns, self._clock, state.stamp.ns, self._control_step)
        if self._change('connection', state.state.word, times):
            level = CONNECTION_LEVELS.get(state.state, Level.WARN)
            self._event(because(f'connection: {state.state.word}', state.reason), times, level)
        if self._change('episode', state.episode_id, times):
            self._event(f'episode {state.episode_id or "ended"}', times)
        if self._change('paused', 'paused' if state.paused else '', times) and state.paused:
            self._event('paused by an operator', times, Level.WARN)
        if self._is_silent(time_ns):
            self._on_rung(state.rung, state.reason, times)
        self._emit((QUEUE, 'remaining_s'), Scalar(state.queue_remaining_s), times)
        self._emit((REQUEST, 'round_trip_ms'), Scalar(state.round_trip_ms), times)
        self._emit((REQUEST, 'network_ms'), Scalar(state.network_ms), times)
        self._on_drops(state, times)

    def _on_drops(self, state: EdgeState, times: Times) -> None:
        now = {
            **{each.reason: each.count for each in state.dropped},
            'stalls': state.stalls,
            'missed control steps': state.control_steps_missed,
        }
        before, self._drops = self._drops, now
        if before is not None and (text := _increases(before, now)):
            self._event(f'dropped: {text}', times, Level.WARN)

    def on_decision(self, decision: RoutingDecision, time_ns: int) -> None:
        moved = 'moved to' if decision.moved else 'placed in'
        text = f'episode {decision.episode_id} {moved} slot {decision.slot} ({decision.policy})'
        if decision.split_version:
            text += f', version {decision.split_version} of the split'
        level = Level.WARN if decision.moved else Level.INFO
        self._event(because(text, decision.reason), self._times(time_ns), level)

    def on_outcome(self, outcome: EpisodeOutcome, time_ns: int) -> None:
        if not _is_new(self._outcomes, outcome.episode_id, outcome.outcome.word):
            self._count('copies of outcomes, at the router')
            return
        word = outcome.outcome.word
        text = f'episode {outcome.episode_id}: {word} after {outcome.duration_s:.1f} s'
        level = Level.WARN if outcome.outcome == EpisodeOutcome.Outcome.FAILURE else Level.INFO
        self._event(because(text, outcome.text), self._times(time_ns), level)

    def on_divergence(self, divergence: ShadowDivergence, time_ns: int) -> None:
        times = self._times(time_ns)
        self._emit(('shadow', 'divergence'), Scalar(divergence.divergence), times)

    # how it is emitted

    def _times(self, time_ns: int) -> Times:
        """Return the times of a message without a control step: that of the last command."""
        return Times(time_ns, control_step=self._control_step)

    def _is_silent(self, time_ns: int) -> bool:
        return time_ns - self._last_command_ns > SILENCE_NS


def check_frame(image: Image) -> None:
    """
    Raise Malformed for a frame that has another size than it declares. Reads the header of a JPEG
    only.
    """
    if image.codec != Codec.JPEG:
        image_codec.decode(image)
        return
    image_codec.check_jpeg(image)


def recorded_frame(message: BagMessage) -> Frame:
    """Return the frame of a recorded image: RGB, grey or depth, JPEG or PNG. Raises Malformed."""
    if message.type == RAW_TYPE:
        image = decode(RawImage, message.data)
        pixels = pixels_of(image)
        # without alpha
        order = (2, 1, 0) if image.encoding.startswith('bgr') else (0, 1, 2)
        return Frame(pixels if pixels.shape[2] == 1 else pixels[:, :, order])
    data = bytes(decode(CompressedImage, message.data).data)
    try:
        check_picture(data)
    except UnreadablePicture as error:
        raise Malformed('frame', f'{message.topic} {error}') from None
    return Frame(data)


def _is_new(recent: OrderedDict[K, T], key: K, value: T) -> bool:
    """Add a key, dropping the oldest one beyond RECENT; False if it is there."""
    if key in recent:
        return False
    recent[key] = value
    if len(recent) > RECENT:
        recent.popitem(last=False)
    return True


def _increases(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    grown = {name: count - before.get(name, 0) for name, count in now.items()}
    return ', '.join(f'{count} {name}' for name, count in sorted(grown.items()) if count > 0)
