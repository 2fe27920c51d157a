# SPDX-License-Identifier: Apache-2.0
"""A person beside a hunted edge: a leader arm and its deadman."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.takeover import (
    COMMAND,
    DEADMAN,
    DeviceState,
    PersonInput,
    PersonTarget,
)

# what the leader arm says of the action that carries marks: no row has it
NO_MARK = -5.0
HELD, RELEASED = b'held', b'released'


class PersonMessages:
    """Commands are arrays already."""

    def person_target(self, raw: np.ndarray, _: object) -> PersonTarget:
        if not np.isfinite(raw).all():
            raise Malformed('not_finite', 'hunted')
        return PersonTarget(raw)

    def is_button_pressed(self, raw: bytes, *_: object) -> bool:
        return raw == HELD


@dataclass(slots=True)
class ModelPerson:
    """What the person does; `sent_ns` is when the leader arm last sent a command."""

    pose: tuple[float, float] = (0.5, 0.5)
    is_held: bool = True
    is_sending: bool = True
    are_two: bool = False
    sent_ns: int = 0
    sent_pose: tuple[float, float] = (0.0, 0.0)
    # messages that are read one after the other since the process stood still
    waits: int = 0

    def deposit(self, device: PersonInput, now_ns: int) -> None:
        """Send, as the topics of the device do before a control step."""
        if self.waits:
            # of a person who has let go since
            self.waits -= 1
            device.deposit([DEADMAN], HELD, now_ns, 1)
            device.deposit([COMMAND], np.array([*self.pose, NO_MARK]), now_ns, 1)
            return
        device.deposit([DEADMAN], HELD if self.is_held else RELEASED, now_ns, 1)
        device.blocked_by = DeviceState.TWO_SOURCES if self.are_two else None
        if self.is_sending:
            self.sent_ns, self.sent_pose = now_ns, self.pose
            device.deposit([COMMAND], np.array([*self.pose, NO_MARK]), now_ns, 1)

    def may_command(self, now_ns: int, timeout_ns: int) -> bool:
        """Return whether the robot may follow."""
        is_new = np.isfinite(self.sent_pose).all() and now_ns - self.sent_ns <= timeout_ns
        return self.is_held and not self.are_two and bool(is_new)
