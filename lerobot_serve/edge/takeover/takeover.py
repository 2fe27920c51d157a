# SPDX-License-Identifier: Apache-2.0
"""
Who commands, the policy or a person: begun and ended by services, read in each control step.

    taken over  device     intervention
    no          any        NONE: the policy commands, whatever the device sends
    yes         READY      COMMANDING
    yes         any other  LOST: the ladder, until the device is READY again or ~/hand_back

A device alone takes over nothing and hands nothing back: a person who lets go of the deadman does
not restart the policy.
"""

from __future__ import annotations

from typing import NamedTuple

from lerobot_serve.edge.control.authority import Intervention
from lerobot_serve.edge.decisions import Decision, RobotDecisions
from lerobot_serve.edge.takeover.person_input import (
    DeviceState,
    PersonInput,
    PersonReading,
    PersonTarget,
)

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
