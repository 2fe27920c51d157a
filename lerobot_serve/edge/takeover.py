# SPDX-License-Identifier: Apache-2.0
"""
Takeover: a person commands the robot with a leader arm or a joystick, instead of the policy.

Services begin and end it; it is read in each control step:

    taken over  device     intervention
    no          any        NONE: the policy commands, whatever the device sends
    yes         READY      COMMANDING
    yes         any other  LOST: the ladder, until the device is READY again or ~/hand_back

A device alone takes over nothing and hands nothing back: a person who lets go of the deadman does
not restart the policy. The thread `inputs` deposits messages, the tick thread reads the newest
ones. A message counts for `timeout_s` after its arrival: a leader arm that is unplugged, or an
operator who lets go, ends the command within that time. Plain; edge.ros decodes the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np

from lerobot_serve.arrays import BoolArray, Float64Array
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.control.authority import Intervention
from lerobot_serve.edge.decisions import Decision, RobotDecisions
from lerobot_serve.edge.inputs.latest import LatestInputs
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.file_format import InterventionInput

COMMAND, DEADMAN = 'command', 'deadman'


class PersonTarget(NamedTuple):
    """
    What a person wants: one finite value for each action; `is_rate`: positions change by these
    each second.
    """

    values: Float64Array
    is_rate: bool = False

    def at(self, position: Float64Array, is_velocity: BoolArray, step_s: float) -> Float64Array:
        """Return the target of a step from the `position` commanded last."""
        if not self.is_rate:
            return self.values
        return np.where(is_velocity, self.values, position + self.values * step_s)


class DeviceState(Enum):
    """Whether the device of a person commands the robot now; the value says why not."""

    READY = ''
    # the robot file names none any more
    NO_DEVICE = 'the robot file names no device'
    CONFLICT = 'another edge controller commands the robot'
    TWO_SOURCES = 'more than one publisher'
    NO_DEADMAN = 'no message of the deadman'
    RELEASED = 'deadman released'
    NO_COMMAND = 'no command'
    UNUSABLE = 'unusable command'


class PersonReading(NamedTuple):
    """The device in one control step; `target` only where it is READY."""

    state: DeviceState = DeviceState.NO_COMMAND
    target: PersonTarget | None = None
    # the newest command, see LatestInputs.read; none for a robot without such a device
    input_ids: tuple[int, ...] = ()


class PersonMessages(Protocol):
    """Decodes the messages of a person; implemented by edge.ros.person_messages."""

    def person_target(self, raw: bytes, robot: RobotDescription) -> PersonTarget:
        """Return the target. Raises Malformed, also for a value that is not finite."""

    def is_button_pressed(self, raw: bytes, topic: str, button: int) -> bool:
        """Return whether a button of a sensor_msgs/Joy is pressed. Raises Malformed."""


class PersonInput:
    """The device of one robot; `count_dropped` counts messages that cannot be used."""

    def __init__(
        self,
        robot: RobotDescription,
        description: InterventionInput,
        messages: PersonMessages,
        *,
        count_dropped: Callable[[str], None],
    ) -> None:
        self.description = description
        self._robot, self._messages, self._count_dropped = robot, messages, count_dropped
        self._timeout_ns = int(1e9 * description.timeout_s)
        self._latest = LatestInputs({COMMAND: 0, DEADMAN: 0})
        # the newest command and its target, decoded once; None for one that cannot be used
        self._decoded: tuple[bytes, PersonTarget | None] | None = None
        self._refused: bytes | None = None
        # CONFLICT or TWO_SOURCES; set by the executor thread
        self.blocked_by: DeviceState | None = None

    # inputs thread

    def deposit(self, names: Sequence[str], raw: bytes, now_ns: int, message_id: int) -> None:
        """Store a message as COMMAND, DEADMAN or both."""
        for name in names:
            self._latest.deposit(name, raw, now_ns, message_id)

    # tick thread

    def forget(self) -> None:
        """Forget the messages that have arrived."""
        self._latest.clear()

    def read(self, now_ns: int) -> PersonReading:
        """Return whether the person commands in this step, and the target."""
        (command, deadman), (command_id, _) = self._latest.read((COMMAND, DEADMAN))
        ids = (command_id,)
        if blocked_by := self.blocked_by:
            return PersonReading(blocked_by, None, ids)
        state = self._deadman_state(deadman, now_ns)
        if state is not DeviceState.READY:
            return PersonReading(state, None, ids)
        if command is None or now_ns - command[1] > self._timeout_ns:
            return PersonReading(DeviceState.NO_COMMAND, None, ids)
        target = self._target(command[0])
        state = DeviceState.UNUSABLE if target is None else DeviceState.READY
        return PersonReading(state, target, ids)

    def _deadman_state(self, slot: tuple[bytes, int] | None, now_ns: int) -> DeviceState:
        deadman = self.description.deadman
        if not deadman:
            return DeviceState.READY
        if slot is None or now_ns - slot[1] > self._timeout_ns:
            return DeviceState.NO_DEADMAN
        raw, _ = slot
        try:
            if self._messages.is_button_pressed(
                raw, self.description.deadman_topic, deadman.button
            ):
                return DeviceState.READY
        except Malformed as error:
            if raw is not self._refused:
                self._refused = raw
                self._count_dropped(error.reason)
            return DeviceState.NO_DEADMAN
        return DeviceState.RELEASED

    def _target(self, raw: bytes) -> PersonTarget | None:
        if self._decoded is None or self._decoded[0] is not raw:
            target = None
            try:
                target = self._messages.person_target(raw, self._robot)
            except Malformed as error:
                self._count_dropped(error.reason)
            self._decoded = raw, target
        return self._decoded[1]


NOT_CONFIGURED = (
    'This robot has no device for a person: add `intervention` to its robot file and restart '
    'the edge controller'
)
NO_DEVICE = PersonReading(DeviceState.NO_DEVICE)


class PersonCommand(NamedTuple):
    """What a person commands in one control step."""

    intervention: Intervention = Intervention.NONE
    target: PersonTarget | None = None
    input_ids: tuple[int, ...] = ()


def intervention_of(device: DeviceState, *, is_taken_over: bool) -> Intervention:
    """Evaluate the table."""
    if not is_taken_over:
        return Intervention.NONE
    return Intervention.COMMANDING if device is DeviceState.READY else Intervention.LOST


class Takeover:
    """
    Reads the device of a person who has taken over; `device` is None for a robot without one. A
    takeover survives the process: then the person, or ~/hand_back, is waited for.
    """

    def __init__(self, device: PersonInput | None, decisions: RobotDecisions) -> None:
        self.device, self._decisions = device, decisions
        self._reading = PersonReading()

    # any thread

    @property
    def is_taken_over(self) -> bool:
        """Whether a person has taken over."""
        return self._decisions.holds(Decision.TAKEN_OVER)

    @property
    def lost_reason(self) -> str:
        """Why a person who has taken over does not command; empty if they do."""
        return self._described(self._reading.state) if self.is_taken_over else ''

    def _described(self, state: DeviceState) -> str:
        if self.device is None or state in (DeviceState.READY, DeviceState.CONFLICT):
            return state.value
        description = self.device.description
        is_deadman = state in (DeviceState.NO_DEADMAN, DeviceState.RELEASED)
        topic = description.deadman_topic if is_deadman else ''
        return f'{state.value} on {topic or description.topic}'

    def refusal(self) -> str:
        """Return why a person may not take over; empty if they may."""
        if self.device is None:
            return NOT_CONFIGURED
        if blocked_by := self.device.blocked_by:
            return f'{self._described(blocked_by)}. Stop all but one, then call again'
        return ''

    def begin(self) -> str:
        """Begin a takeover; return a warning where a restart would end it, empty otherwise."""
        self._decisions.decide(Decision.TAKEN_OVER)
        return self._decisions.settle(Decision.TAKEN_OVER)

    def end(self) -> str:
        """End a takeover; return a warning where a restart would begin it again."""
        self._decisions.lift(Decision.TAKEN_OVER)
        return self._decisions.settle(Decision.TAKEN_OVER)

    # tick thread

    def forget(self) -> None:
        """Wait for new messages of the device: nothing older counts after a silence."""
        if self.device:
            self.device.forget()

    def read(self, now_ns: int) -> PersonCommand:
        """Return what the person commands in this step."""
        reading = NO_DEVICE if self.device is None else self.device.read(now_ns)
        self._reading = reading
        intervention = intervention_of(reading.state, is_taken_over=self.is_taken_over)
        is_commanding = intervention is Intervention.COMMANDING
        target = reading.target if is_commanding else None
        return PersonCommand(intervention, target, reading.input_ids)
