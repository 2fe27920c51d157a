# SPDX-License-Identifier: Apache-2.0
"""Predictions for the newest observation, while the robot moves."""

from __future__ import annotations

from collections.abc import Iterator
import threading

from lerobot_serve.client.errors import ClientClosed
from lerobot_serve.client.results import Prediction
from lerobot_serve.client.session.inputs import ObservationCheck
from lerobot_serve.client.session.plans import SessionPlans
from lerobot_serve.client.steps import Closing, run_plan
from lerobot_serve.client.streams.stream import Stream
from lerobot_serve.local.signal import Signal


class PredictionStream(Stream, Closing, Iterator[Prediction]):
    """
    Predictions while the robot moves: `put` observations at any rate, iterate over chunks. The
    newest observation is requested as soon as the one before has its reply; the others are counted
    in `superseded`. A thread of its own requests; any thread may put, one iterates.
    """

    def __init__(self, plans: SessionPlans, check: ObservationCheck, timeout_s: float) -> None:
        super().__init__(plans, check, Signal, plans.signal(), timeout_s)
        self._worker = threading.Thread(
            target=lambda: run_plan(self._requesting()), name='prediction_stream', daemon=True
        )
        self._worker.start()

    def __next__(self) -> Prediction:
        """
        Wait for the next prediction. Raises the error of a request, after which the stream goes
        on.
        """
        try:
            return run_plan(self._next_result())
        except ClientClosed:
            raise StopIteration from None

    def close(self) -> None:
        """End the thread; a request in flight is given up."""
        self._end()
        self._plans.state.supersede(self._signal, 'the stream was closed')
        self._worker.join()
