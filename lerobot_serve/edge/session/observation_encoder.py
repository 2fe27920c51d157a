# SPDX-License-Identifier: Apache-2.0
"""
Encodes requests: observations from the inputs, with the prefix and the execution report, in the
names and units of the policy. The request thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.data_path import execution_report as wire_executed
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.edge.action_queue import Leftover
from lerobot_serve.edge.inputs.latest import HistoryStep, ObservationHistory
from lerobot_serve.edge.robot.units import executed_for_policy, SAME_UNITS, UnitConversions
from lerobot_serve.edge.session.tracker import PendingRequest
from lerobot_serve.edge.session.transport.transport import SessionAgreement

# one row of state for each observation, and the encoded frames
RobotInputs = tuple[Float32Array, tuple[Image, ...]]


class ObservationReader(Protocol):
    """Opens, checks and encodes inputs; implemented by inputs.observation_builder."""

    def begin_session(self, cameras: tuple[CameraSpec, ...]) -> None:
        """Use the frame sizes that the server stated."""

    def read(self, steps: tuple[HistoryStep, ...]) -> RobotInputs:
        """Return states and images, oldest first. Raises Malformed or Unencodable."""


class ObservationEncoder:
    """
    Encodes the requests of one client. `executed` returns the execution report since the last
    request; `units` are those of the actions.
    """

    def __init__(
        self,
        client_id: str,
        history: ObservationHistory,
        observations: ObservationReader,
        executed: Callable[[], ExecutionReport],
        units: UnitConversions = SAME_UNITS,
    ) -> None:
        self.client_id = client_id
        self._history, self._observations = history, observations
        self._executed, self._units = executed, units

    def begin_session(self, agreement: SessionAgreement) -> None:
        """Encode as this session requires."""
        self._history.require(agreement.observation_steps, agreement.observation_stride_steps)
        self._observations.begin_session(agreement.cameras)

    def begin_episode(self) -> None:
        """Clear the history."""
        self._history.restart()

    def take_steps(self, now_ns: int) -> tuple[HistoryStep, ...]:
        """Return the inputs of a request, oldest first. Raises InputsNotReady."""
        return self._history.take(now_ns)

    def read(self, steps: tuple[HistoryStep, ...]) -> RobotInputs:
        """Open and encode the inputs. Raises Malformed or Unencodable."""
        return self._observations.read(steps)

    def observation(
        self,
        pending: PendingRequest,
        inputs: RobotInputs,
        prefix: Leftover,
        *,
        task: str,
        delay_steps: int,
        playable_s: float,
    ) -> Observation:
        """Return the observation of a request."""
        state, images = inputs
        report = executed_for_policy(self._executed(), self._units)
        return Observation(
            pending.header,
            client_id=self.client_id,
            episode_id=pending.episode_id,
            state=state,
            images=images,
            task=task,
            inference_delay_steps=min(delay_steps, len(prefix.robot)),
            queue_remaining_s=playable_s,
            prefix_policy=prefix.policy,
            prefix_model=prefix.model,
            prefix_robot=self._units.to_policy(prefix.robot).astype(np.float32, copy=False),
            # lost with the request; it is not sent again
            extensions=(wire_executed.encode(report),),
        )
