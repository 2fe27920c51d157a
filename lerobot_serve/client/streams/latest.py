# SPDX-License-Identifier: Apache-2.0
"""
The newest observation on its way to a server, and the newest result on its way back: what is
replaced before it was taken is counted. The thread or task of a stream takes observations and puts
results; its user does the opposite. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import threading
from typing import Any

from numpy.typing import ArrayLike

from lerobot_serve.client.errors import ClientClosed, PolicyClientError, TooLate, unexpected_error
from lerobot_serve.client.results import Prediction
from lerobot_serve.client.session.inputs import ObservationCheck, Observed
from lerobot_serve.client.session.plans import SessionPlans
from lerobot_serve.client.steps import Pause, Plan, Waker


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """An observation that wants a chunk; without a task it is that of the episode."""

    observed: Observed
    task: str | None


class LatestOnly:
    """`to_worker` wakes the one that requests, `to_user` the one that reads results."""

    def __init__(self, to_worker: Waker, to_user: Waker) -> None:
        self._to_worker, self._to_user = to_worker, to_user
        self._lock = threading.Lock()
        self._wanted: Wanted | None = None
        self._result: Prediction | PolicyClientError | None = None
        self._is_busy = self.is_closed = False
        # observations that a newer one replaced, and results that were never read
        self.superseded = self.unread = 0

    # the user

    def put(self, wanted: Wanted) -> None:
        """Replace the waiting observation."""
        with self._lock:
            if self.is_closed:
                raise ClientClosed('the stream is closed', 'open another one')
            self.superseded += self._wanted is not None
            self._wanted = wanted
        self._to_worker.set()

    def take_result(self) -> Prediction | None:
        """Return the newest prediction, None without a new one. Raises the error of a request."""
        with self._lock:
            result, self._result = self._result, None
        if isinstance(result, PolicyClientError):
            raise result
        return result

    def next_result(self, timeout_s: float) -> Plan[Prediction]:
        """
        Wait for the next prediction. Raises the error of a request, and TooLate when nothing was
        put within the timeout; a request that runs has a timeout of its own.
        """
        while True:
            self._to_user.clear()
            result = self.take_result()
            if result:
                return result
            if self.is_closed:
                raise ClientClosed('the stream is closed', 'open another one')
            is_set = yield Pause(self._to_user, timeout_s)
            if not is_set and self.is_idle:
                raise TooLate('no observation was put', 'call put() before the next prediction')

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs or can be read."""
        with self._lock:
            return not (self._wanted or self._is_busy or self._result)

    # the one that requests

    def take(self) -> Wanted | None:
        """Return the waiting observation, which is requested now; None without one."""
        with self._lock:
            wanted, self._wanted = self._wanted, None
            self._is_busy = wanted is not None
            return wanted

    def finish(self, result: Prediction | PolicyClientError) -> None:
        """Deposit the result of a request; how one ended that was given up matters to nobody."""
        with self._lock:
            if self.is_closed and isinstance(result, PolicyClientError):
                return
            self.unread += self._result is not None
            self._result, self._is_busy = result, False
        self._to_user.set()

    def close(self) -> None:
        """Wake both ends; nothing is put any more."""
        with self._lock:
            self.is_closed = True
        self._to_worker.set()
        self._to_user.set()


class Stream:
    """The base of PredictionStream and AsyncPredictionStream, which run `_requesting`."""

    def __init__(
        self,
        plans: SessionPlans,
        check: ObservationCheck,
        make_signal: Callable[[], Waker],
        timeout_s: float,
    ) -> None:
        self._plans, self._check, self._timeout_s = plans, check, timeout_s
        self._to_worker, self._signal = make_signal(), make_signal()
        self._latest = LatestOnly(self._to_worker, make_signal())

    def _requesting(self) -> Plan[None]:
        """Request what is put, until the stream is closed."""
        while not self._latest.is_closed:
            self._to_worker.clear()
            wanted = self._latest.take()
            if wanted:
                self._latest.finish((yield from self._result(wanted)))
            else:
                yield Pause(self._to_worker, self._timeout_s)

    def _result(self, wanted: Wanted) -> Plan[Prediction | PolicyClientError]:
        limit_s = self._plans.state.terms.reply_deadline_s
        try:
            return (
                yield from self._plans.predict(wanted.observed, wanted.task, limit_s, self._signal)
            )
        except PolicyClientError as error:
            return error
        except Exception as error:
            return unexpected_error(error)

    def put(
        self, state: ArrayLike, images: Mapping[str, Any] | None = None, task: str | None = None
    ) -> None:
        """Replace the waiting observation; returns at once. Raises WrongObservation."""
        self._latest.put(Wanted(self._check(state, images), task))

    def latest(self) -> Prediction | None:
        """
        Return the newest prediction that was not returned yet, None without one. Raises the error
        of a request.
        """
        return self._latest.take_result()

    @property
    def superseded(self) -> int:
        """Observations that a newer one replaced before they were requested."""
        return self._latest.superseded

    @property
    def unread(self) -> int:
        """Predictions and errors that a newer one replaced before they were read."""
        return self._latest.unread
