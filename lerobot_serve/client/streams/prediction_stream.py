# SPDX-License-Identifier: Apache-2.0
"""Predictions for the newest observation, while the robot moves."""

from __future__ import annotations

from collections.abc import Iterator
import threading
from typing import Self

from lerobot_serve.client.errors import ClientClosed, PolicyClientError, unexpected_error
from lerobot_serve.client.results import Prediction
from lerobot_serve.client.session.inputs import ObservationCheck
from lerobot_serve.client.session.plans import SessionPlans
from lerobot_serve.client.steps import run_plan
from lerobot_serve.client.streams.latest import LatestOnly, Stream, Wanted


class PredictionStream(Stream, Iterator[Prediction]):
    """
    Predictions while the robot moves: `put` observations at any rate, iterate over chunks. The
    newest observation is requested as soon as the one before has its reply; the others are counted
    in `superseded`. A thread of its own requests; any thread may put, one iterates.
    """

    def __init__(self, plans: SessionPlans, check: ObservationCheck, timeout_s: float) -> None:
        self._plans = plans
        self._to_worker, self._signal = threading.Event(), threading.Event()
        super().__init__(check, LatestOnly(self._to_worker, threading.Event()), timeout_s)
        self._worker = threading.Thread(
            target=self._request, name='prediction_stream', daemon=True
        )
        self._worker.start()

    def __next__(self) -> Prediction:
        """
        Wait for the next prediction. Raises the error of a request, after which the stream goes
        on.
        """
        try:
            return run_plan(self._latest.next_result(self._timeout_s))
        except ClientClosed:
            raise StopIteration from None

    def close(self) -> None:
        """End the thread; a request in flight is given up."""
        self._latest.close()
        self._plans.turns.end(self._signal, 'the stream was closed')
        self._worker.join()

    def _request(self) -> None:
        while True:
            self._to_worker.wait()
            self._to_worker.clear()
            if self._latest.is_closed:
                return
            wanted = self._latest.take()
            if wanted:
                self._latest.finish(self._result(wanted))

    def _result(self, wanted: Wanted) -> Prediction | PolicyClientError:
        timeout_s = self._plans.state.settings.timeout_s
        try:
            return run_plan(
                self._plans.predict(wanted.observed, wanted.task, timeout_s, self._signal)
            )
        except PolicyClientError as error:
            return error
        except Exception as error:
            return unexpected_error(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
