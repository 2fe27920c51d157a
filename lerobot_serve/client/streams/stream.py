# SPDX-License-Identifier: Apache-2.0
"""
The newest observation on its way to a server, and the newest result on its way back: what is
replaced before it was taken is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import threading
from typing import Any

from numpy.typing import ArrayLike

from lerobot_serve.client.errors import ClientClosed, PolicyClientError, PolicyFailed, TooLate
from lerobot_serve.client.results import Prediction
from lerobot_serve.client.session.inputs import ObservationCheck, Observed
from lerobot_serve.client.session.plans import SessionPlans
from lerobot_serve.client.steps import Pause, Plan, Waker


class Stream:
    """
    The base of PredictionStream and AsyncPredictionStream, which run `_requesting` in a thread or
    task. Any thread.

    superseded  observations that a newer one replaced before they were requested
    unread      predictions and errors that a newer one replaced before they were read
    """

    def __init__(
        self,
        plans: SessionPlans,
        check: ObservationCheck,
        make_signal: Callable[[], Waker],
        request_signal: Waker,
        timeout_s: float,
    ) -> None:
        self._plans, self._check, self._timeout_s = plans, check, timeout_s
        # of the one that requests, of its request, and of the one that reads
        self._to_worker, self._signal, self._to_user = make_signal(), request_signal, make_signal()
        self._lock = threading.Lock()
        # an observation that wants a chunk, and its task, None for that of the episode
        self._wanted: tuple[Observed, str | None] | None = None
        self._result: Prediction | PolicyClientError | None = None
        self._is_busy = self._is_closed = False
        self.superseded = self.unread = 0

    def put(
        self, state: ArrayLike, images: Mapping[str, Any] | None = None, task: str | None = None
    ) -> None:
        """Replace the waiting observation, at once. Raises WrongObservation and ClientClosed."""
        wanted = self._check(state, images), task
        with self._lock:
            self._check_usable()
            self.superseded += self._wanted is not None
            self._wanted = wanted
        self._to_worker.set()

    def latest(self) -> Prediction | None:
        """
        Return the newest prediction that was not returned yet, None without one. Raises the error
        of a request.
        """
        with self._lock:
            result, self._result = self._result, None
        if isinstance(result, PolicyClientError):
            raise result
        return result

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClientClosed('the stream is closed', 'open another one')

    def _next_result(self) -> Plan[Prediction]:
        """
        Wait for the next prediction. Raises the error of a request, and TooLate when nothing was
        put within the timeout; a request that runs has a timeout of its own.
        """
        while True:
            self._to_user.clear()
            result = self.latest()
            if result:
                return result
            self._check_usable()
            is_set = yield Pause(self._to_user, self._timeout_s)
            with self._lock:
                is_idle = not (self._wanted or self._is_busy or self._result)
            if is_idle and not is_set:
                raise TooLate('no observation was put', 'call put() before the next prediction')

    # the one that requests

    def _requesting(self) -> Plan[None]:
        """Request what is put, until the stream is closed."""
        while not self._is_closed:
            self._to_worker.clear()
            with self._lock:
                wanted, self._wanted = self._wanted, None
                self._is_busy = wanted is not None
            if wanted:
                self._finish((yield from self._predict(*wanted)))
            else:
                yield Pause(self._to_worker, self._timeout_s)

    def _predict(
        self, observed: Observed, task: str | None
    ) -> Plan[Prediction | PolicyClientError]:
        limit_s = self._plans.state.terms.reply_deadline_s
        try:
            return (yield from self._plans.predict(observed, task, limit_s, self._signal))
        except PolicyClientError as error:
            return error
        except Exception as error:
            # a fault in this package
            return PolicyFailed(f'{type(error).__name__}: {error}', 'report it')

    def _finish(self, result: Prediction | PolicyClientError) -> None:
        """Deposit the result of a request; how one ended that was given up matters to nobody."""
        with self._lock:
            if self._is_closed and isinstance(result, PolicyClientError):
                return
            self.unread += self._result is not None
            self._result, self._is_busy = result, False
        self._to_user.set()

    def _end(self) -> None:
        """Wake both ends; nothing is put any more."""
        with self._lock:
            self._is_closed = True
        self._to_worker.set()
        self._to_user.set()
