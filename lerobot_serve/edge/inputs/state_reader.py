# SPDX-License-Identifier: Apache-2.0
"""Reads the state of the robot from the latest inputs, which a MessageReader opens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lerobot_serve.arrays import Float64Array, FrameArray
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.inputs.latest import InputsNotReady, LatestInputs, ObservationHistory
from lerobot_serve.edge.robot.description import (
    CameraInput,
    input_topics,
    measured_values,
    measuring_indices,
    RobotDescription,
    state_input_names,
    StateSource,
)


class MessageReader(Protocol):
    """
    Decodes raw input messages; implemented by edge.ros.sensor_messages. Each raises Malformed. Any
    thread.
    """

    def state_vector(self, raws: Sequence[bytes], sources: Sequence[StateSource]) -> Float64Array:
        """Return the concatenated values of all sources, from one message of each."""

    def rgb_frame(self, raw: bytes, camera: CameraInput) -> FrameArray:
        """Return height x width x channels, RGB."""

    def camera_jpeg(self, raw: bytes, camera: CameraInput) -> Image | None:
        """Return a camera's own JPEG, None if the frame must be encoded."""


class RobotState(NamedTuple):
    """
    Current state values, and the measured position of each action; None: unknown. `arrived_ns` is
    the arrival time of each message, `sent_ns` when it was sent, by the clock of its sender;
    `input_ids` names the newest message of each input of the robot.
    """

    state: Float64Array | None = None
    measured: Float64Array | None = None
    arrived_ns: tuple[int, ...] = ()
    sent_ns: tuple[int, ...] = ()
    input_ids: tuple[int, ...] = ()


class StateReader:
    """Decodes the latest state inputs into the state of the robot. The tick thread."""

    def __init__(
        self, inputs: LatestInputs, messages: MessageReader, robot: RobotDescription
    ) -> None:
        self._inputs, self._messages, self._sources = inputs, messages, robot.state
        self._names, self._measuring = state_input_names(robot), measuring_indices(robot)
        order = list(input_topics(robot))
        self._places = [order.index(name) for name in self._names]
        # why the state is not known now, and was not the last time; any thread may read them
        self.unknown = self.last_unknown = ''

    def __call__(self, now_ns: int) -> RobotState:
        slots, ids = self._inputs.read(self._names)
        try:
            newest = [
                self._inputs.checked(name, slot, now_ns)
                for name, slot in zip(self._names, slots, strict=True)
            ]
            state = self._messages.state_vector([raw for raw, _ in newest], self._sources)
        except (InputsNotReady, Malformed) as error:
            self.unknown = self.last_unknown = str(error)
            return RobotState(input_ids=ids)
        self.unknown = ''
        arrived_ns = tuple(at_ns for _, at_ns in newest)
        # the source timestamp identifies a message
        sent_ns = tuple(ids[place] for place in self._places)
        measured = measured_values(state, self._measuring)
        return RobotState(state, measured, arrived_ns, sent_ns, ids)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """
    The inputs of a control step: the state is read in each, the history is recorded at the rate of
    the policy, once in `commands_per_action` steps.
    """

    history: ObservationHistory
    read_state: Callable[[int], RobotState]
    commands_per_action: int = 1
