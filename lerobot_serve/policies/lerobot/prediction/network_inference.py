# SPDX-License-Identifier: Apache-2.0
"""
Run one forward pass of a LeRobot network, by its state class. Inference thread.

LeRobot keeps histories and hidden state inside the policy. Here they are passed in before each
pass and taken out after it, so that one policy serves several clients.
"""

from __future__ import annotations

from typing import Any

import torch

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.lerobot.compat import lerobot
from lerobot_serve.policies.lerobot.prediction.batches import merge_rows, Row, RtcGuidance

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
