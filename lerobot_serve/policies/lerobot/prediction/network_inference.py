# SPDX-License-Identifier: Apache-2.0
"""
Build the inputs of LeRobot's processors and networks from requests, and run one forward pass of a
network, by its state class. Inference thread.

LeRobot keeps histories and hidden state inside the policy. Here they are passed in before each
pass and taken out after it, so that one policy serves several clients.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lerobot_serve.arrays import FrameArray
from lerobot_serve.contract.image_size import resized
from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import PolicyCamera, PolicyDescription, PolicyError, PolicyRequest
from lerobot_serve.policies.lerobot.checkpoint.features import ACTION, STATE
from lerobot_serve.policies.lerobot.compat import lerobot
from lerobot_serve.policies.lerobot.prediction.processors import PrefixReanchorer
from lerobot_serve.policies.runtime.device import tensor_view

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RtcGuidance:
    """The RTC inputs of one request; `prefix` is rows x actions, None for none."""

    delay_steps: int = 0
    horizon: int | None = None
    prefix: torch.Tensor | None = None

    @property
    def key(self) -> Hashable:
        """Key of a batch: requests with equal keys may share a forward pass."""
        if self.prefix is None:
            return None
        return self.delay_steps, self.horizon, self.prefix.shape[0]


class ObservationBuilder:
    """Converts a request to the observations that LeRobot expects, one per control step."""

    def __init__(
        self, description: PolicyDescription, device: torch.device, *, resizes: bool
    ) -> None:
        self._description = description
        self._device = device
        self._resizes = resizes
        # division by a tensor rounds equally on every device
        self._full = torch.tensor(255.0, device=device)

    def build(self, request: PolicyRequest) -> list[Row]:
        """Return the observations, oldest first, each of batch size 1. Raises PolicyError."""
        wanted, steps = self._description, self._description.observation_steps
        shape = (steps, len(wanted.state_names))
        if request.state.shape != shape:
            raise PolicyError(
                f'the state must be {shape[0]} x {shape[1]} (steps x values), got '
                f'{request.state.shape}; send the history that OpenSession requires'
            )
        frames = {camera.name: self._frames(request, camera) for camera in wanted.cameras}
        return [self._observation(request, frames, step) for step in range(steps)]

    def _frames(self, request: PolicyRequest, camera: PolicyCamera) -> list[FrameArray]:
        frames = request.images.get(camera.name, ())
        steps = self._description.observation_steps
        if len(frames) != steps:
            raise PolicyError(
                f'the camera {camera.name!r} must have {steps} frames, got {len(frames)}; '
                'send every camera with every observation'
            )
        return [self._fitted(frame, camera) for frame in frames]

    def _fitted(self, frame: FrameArray, camera: PolicyCamera) -> FrameArray:
        """Return a frame in the size of the network input."""
        good = frame.ndim == 3 and frame.shape[2] == camera.channels and frame.size > 0
        if not good or frame.dtype != np.uint8:
            raise PolicyError(
                f'the camera {camera.name!r} must give height x width x {camera.channels} of '
                f'uint8, got {frame.shape} of {frame.dtype}'
            )
        return frame if self._resizes else resized(frame, camera.height, camera.width)

    def _observation(
        self, request: PolicyRequest, frames: dict[str, list[FrameArray]], step: int
    ) -> Row:
        row: Row = {name: self._image(each[step]) for name, each in frames.items()}
        if self._description.state_names:
            state = torch.tensor(request.state[step], dtype=torch.float32)
            row[STATE] = state.unsqueeze(0).to(self._device)
        return row | {'task': request.task, 'robot_type': request.robot_type}

    def _image(self, frame: FrameArray) -> torch.Tensor:
        """
        Return 1 x channels x height x width in 0..1; bytes are copied to the device, not floats.
        """
        pixels = tensor_view(frame).to(self._device)
        image = pixels.permute(2, 0, 1).to(torch.float32, memory_format=torch.contiguous_format)
        return (image / self._full).unsqueeze(0)


def make_guidance(
    request: PolicyRequest,
    description: PolicyDescription,
    device: torch.device,
    reanchorer: PrefixReanchorer | None = None,
) -> RtcGuidance:
    """
    Return the RTC inputs of a request; a prefix is never longer than the chunk.

    With a `reanchorer`, that of the request's own observation, the prefix in the robot's units is
    converted. Raises PolicyError for a prefix with another number of actions, and for a delay that
    the policy was not trained for.
    """
    given = request.prefix_robot if reanchorer else request.prefix_model
    rows = given[: description.chunk_size]
    if not description.supports_rtc or not len(rows):
        return RtcGuidance()
    count, units = (
        len(description.action_names),
        "the robot's units" if reanchorer else 'model space',
    )
    if rows.ndim != 2 or rows.shape[1] != count:
        raise PolicyError(
            f'the prefix in {units} must be rows x {count} actions, got {rows.shape}'
        )
    delay_steps = _trained_delay(request, description, len(rows))
    prefix = torch.tensor(rows, dtype=torch.float32)
    if reanchorer:
        with torch.no_grad():
            prefix = reanchorer.reanchor_prefix(prefix)
    prefix = prefix.to(device)
    return RtcGuidance(delay_steps, request.execution_horizon or None, prefix)


def _trained_delay(request: PolicyRequest, description: PolicyDescription, rows: int) -> int:
    """
    Return the delay of a request. Raises PolicyError for one over that of the training.

    Training-time RTC keeps as many rows as the delay; a shorter prefix has no more to keep.
    """
    delay_steps, limit_steps = request.inference_delay_steps, description.max_delay_steps
    if not limit_steps:
        return delay_steps
    if delay_steps > limit_steps:
        raise PolicyError(
            f'the inference delay is {delay_steps} steps, but the policy was trained for at most '
            f'{limit_steps} (rtc_training_max_delay); use a faster device or network, a lower '
            'control rate, or a policy that was trained for longer delays'
        )
    return min(delay_steps, rows)


def tensor_shapes(rows: list[Row]) -> Hashable:
    """Return the shapes of all tensors; rows of equal shapes make one batch."""
    return tuple(
        tuple((key, value.shape) for key, value in sorted(row.items()) if torch.is_tensor(value))
        for row in rows
    )


def merge_rows(rows: list[Row]) -> Row:
    """
    Return one batch of processed rows: tensors and lists are joined, other values are those of the
    first row.
    """
    return {key: _joined([row[key] for row in rows]) for key in rows[0] if key != ACTION}


def _joined(values: list[Any]) -> Any:
    if torch.is_tensor(values[0]):
        return torch.cat(values)
    if isinstance(values[0], list):
        return [each for value in values for each in value]
    return values[0]


# names of images in LeRobot's queues, and of the single image of TD-MPC
QUEUED_IMAGES, QUEUED_IMAGE = 'observation.images', 'observation.image'


class StatelessInference:
    """A network of one observation without state."""

    def __init__(self, network: Any, *, rtc: bool) -> None:
        self._network = network
        self._rtc = rtc

    def predict(self, histories: list[list[Row]], guidance: list[RtcGuidance]) -> torch.Tensor:
        """Return batch x rows x actions; all `guidance` has the same key."""
        batch = merge_rows([steps[-1] for steps in histories])
        chunks: torch.Tensor = self._network.predict_action_chunk(
            batch, **self._rtc_arguments(guidance)
        )
        return chunks

    def _rtc_arguments(self, guidance: list[RtcGuidance]) -> dict[str, Any]:
        if not self._rtc or guidance[0].prefix is None:
            return {}
        return {
            'inference_delay': guidance[0].delay_steps,
            'execution_horizon': guidance[0].horizon,
            'prev_chunk_left_over': torch.stack(
                [each.prefix for each in guidance if each.prefix is not None]
            ),
        }


class HistoryInference:
    """A network with queues of past observations, which each request contains in full."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def predict(self, histories: list[list[Row]], guidance: list[RtcGuidance]) -> torch.Tensor:
        """Return batch x rows x actions."""
        queues = self._network._queues
        try:
            for rows in zip(*histories, strict=True):
                batch = self._stacked(merge_rows(list(rows)))
                lerobot().populate_queues(queues, batch)
            chunks: torch.Tensor = self._network.predict_action_chunk(batch)
            return chunks
        finally:
            _clear(queues)

    def _stacked(self, batch: Row) -> Row:
        cameras = [batch[name] for name in self._network.config.image_features]
        return batch | ({QUEUED_IMAGES: torch.stack(cameras, dim=-4)} if cameras else {})


class TdmpcInference:
    """TD-MPC. The hidden state is its last plan, which initializes the next one."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.plan: torch.Tensor | None = None

    def predict(self, histories: list[list[Row]], guidance: list[RtcGuidance]) -> torch.Tensor:
        """Return batch x rows x actions, continued from `plan`, which is updated."""
        network = self._network
        batch = merge_rows([steps[-1] for steps in histories])
        for name in network.config.image_features:
            batch[QUEUED_IMAGE] = batch[name]
        network._prev_mean = self.plan
        try:
            lerobot().populate_queues(network._queues, batch)
            planned: torch.Tensor = network.predict_action_chunk(batch)
            self.plan = network._prev_mean
        finally:
            network._prev_mean = None
            _clear(network._queues)
        return planned.transpose(0, 1)


class ExternalInference:
    """A network of another package, which keeps the state of one session in itself."""

    def __init__(self, network: Any) -> None:
        self._network = network
        # the session of the next prediction, and the one that the network holds the state of
        self._session = self._state_of = ''

    def enter(self, session_id: str, *, is_episode_start: bool) -> bool:
        """
        Begin a prediction of this session, with reset state where an episode starts or where the
        network does not hold the state of this session; return whether the state is kept.
        """
        is_kept = not is_episode_start and self._state_of == session_id
        # until the prediction succeeds: after an error the state is that of no session
        self._session, self._state_of = session_id, ''
        if not is_kept:
            self._network.reset()
        return is_kept

    def predict(self, histories: list[list[Row]], guidance: list[RtcGuidance]) -> torch.Tensor:
        """Return batch x rows x actions."""
        batch = merge_rows([steps[-1] for steps in histories])
        chunks: torch.Tensor = self._network.predict_action_chunk(batch)
        self._state_of = self._session
        return chunks


Inference = StatelessInference | HistoryInference | TdmpcInference | ExternalInference


def make_inference(network: Any, state_class: StateClass, *, rtc: bool) -> Inference:
    """Return the inference for this state class."""
    if state_class is StateClass.NEEDS_HISTORY:
        return HistoryInference(network)
    if state_class is StateClass.RECURRENT:
        return TdmpcInference(network)
    if state_class is StateClass.EXCLUSIVE:
        return ExternalInference(network)
    return StatelessInference(network, rtc=rtc)


def _clear(queues: dict[str, Any]) -> None:
    for queue in queues.values():
        queue.clear()
