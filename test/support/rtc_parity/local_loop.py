# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's loop, as its own scripts run it: nothing of this package but what it is compared on.

Policy, processors and RTC's guidance, tracker and queue are LeRobot's classes. Main thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lerobot_serve.policies.lerobot.compat import lerobot, suppress_output
from support.rtc_parity.scene import CAMERA, ROBOT_TYPE, ScriptedObservation, TASK
from support.rtc_parity.script import STEP_S


@dataclass(frozen=True, slots=True, eq=False)
class LocalRequest:
    """A request of the local loop: what guides the next chunk, and where the queue stood."""

    seen: ScriptedObservation
    delay_steps: int
    left: Any
    left_robot: Any
    index: int


# the preprocessor, which has just seen the observation, and rows in the robot's units
Reanchor = Callable[[Any, torch.Tensor], torch.Tensor]


class LocalLoop:
    """
    One policy, one robot after the other. `reanchor` is what LeRobot's loop does to a prefix of
    relative actions, from release 0.5 on.
    """

    def __init__(self, folder: Path, reanchor: Reanchor | None = None) -> None:
        parts = lerobot()
        self._reanchor = reanchor
        with suppress_output():
            config = parts.config_class.from_pretrained(str(folder))
            self.rtc = config.rtc_config = parts.rtc_config(enabled=True)
            self._own_horizon = self.rtc.execution_horizon
            self.policy = parts.get_policy_class(config.type).from_pretrained(
                str(folder), config=config
            )
            self.policy.eval()
            self._before, self._after = parts.make_processors(
                config,
                pretrained_path=str(folder),
                preprocessor_overrides={'device_processor': {'device': 'cpu'}},
            )

    def begin(self, horizon: int, rule: str) -> None:
        """An episode begins."""
        from lerobot.policies.rtc.action_queue import ActionQueue
        from lerobot.policies.rtc.latency_tracker import LatencyTracker

        self.rtc.execution_horizon = horizon or self._own_horizon
        self._rule = rule
        self._queue, self._latency = ActionQueue(self.rtc), LatencyTracker()

    def play(self) -> bytes | None:
        """Return the next row, None when nothing is left."""
        row = self._queue.get()
        return None if row is None else row.numpy().tobytes()

    def ask(self, seen: ScriptedObservation) -> LocalRequest:
        """Note what a request carries."""
        delay = math.ceil((self._latency.max() or 0.0) / STEP_S)
        left, index = self._queue.get_left_over(), self._queue.get_action_index()
        return LocalRequest(seen, delay, left, self._left_robot(), index)

    def answer(self, asked: LocalRequest, latency_s: float, seed: int) -> None:
        """Predict, and merge what came out after `latency_s`."""
        batch = self._before(_observation(asked.seen))
        left = asked.left
        if self._reanchor and left is not None and len(left):
            left = self._reanchor(self._before, asked.left_robot)
        torch.manual_seed(seed)
        with torch.no_grad():
            actions = self.policy.predict_action_chunk(
                batch, inference_delay=asked.delay_steps, prev_chunk_left_over=left
            )
        model, robot = actions.squeeze(0).clone(), self._after(actions).squeeze(0)
        self._latency.add(latency_s)
        lived = self._queue.get_action_index() - asked.index
        delay = math.ceil(latency_s / STEP_S)
        # as LeRobot 0.4 slices, as 0.5 and 0.6 clamp, and as rows were consumed
        delay = {
            'lerobot': delay,
            'elapsed_time': max(0, min(delay, len(model))),
            'moving_time': max(0, min(delay, lived, len(model))),
        }[self._rule]
        self._queue.merge(model, robot, delay, None)

    def left(self) -> tuple[bytes, bytes]:
        """Return what is left to play in both units."""
        model = self._queue.get_left_over()
        if model is None:
            return b'', b''
        return model.numpy().tobytes(), self._left_robot().numpy().tobytes()

    def _left_robot(self) -> Any:
        """Return what newer releases call get_processed_left_over."""
        queue = self._queue
        return None if queue.queue is None else queue.queue[queue.get_action_index() :]


def _observation(seen: ScriptedObservation) -> dict[str, Any]:
    from lerobot.policies.utils import prepare_observation_for_inference

    values: dict[str, np.ndarray] = {CAMERA: seen.frame, 'observation.state': seen.state}
    return prepare_observation_for_inference(values, torch.device('cpu'), TASK, ROBOT_TYPE)
