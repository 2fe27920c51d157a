# SPDX-License-Identifier: Apache-2.0
"""
Decode requests, run the policy on a batch and return the replies. Inference thread.

An invalid request fails alone, without the other requests of its batch.
"""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import NamedTuple

from msgspec import Struct
import numpy as np

from lerobot_serve.arrays import Float32Array, is_finite
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.image_codec import ImageCodecPool
from lerobot_serve.contract.schema import Flag, StateClass, Status
from lerobot_serve.policies.base import (
    CachingPolicy,
    ClosablePolicy,
    Policy,
    PolicyDescription,
    PolicyRequest,
    Prediction,
)
from lerobot_serve.policies.error_text import is_library_error
from lerobot_serve.policies.runtime.request_inputs import blank_request
from lerobot_serve.server.inference.request_queue import QueuedRequest
from lerobot_serve.server.inference.request_validation import error_chunk, make_policy_request
from lerobot_serve.server.observability.server_statistics import ServerStatistics

Clock = Callable[[], int]
# older estimates of the inference time are not used to refuse a request
MAX_ESTIMATE_AGE_NS = 1_000_000_000


class InferenceFailed(Exception):
    """The policy raised or returned an invalid prediction; see `status`."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class InferenceTask(Struct, eq=False):
    """One decoded request of a batch."""

    queued: QueuedRequest
    observation: Observation
    request: PolicyRequest
    prefix_ignored: bool


class BatchTimes(NamedTuple):
    """The times of a batch: begun, decoded, done."""

    begin_ns: int
    ready_ns: int
    done_ns: int


class InferenceWorker:
    """Owned by the inference thread; `process` never raises for bad input."""

    def __init__(
        self,
        policy: Policy,
        *,
        slot: str,
        statistics: ServerStatistics,
        image_threads: int,
        kind: str = '',
        clock: Clock = time.monotonic_ns,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`kind` is that of the policy's loader; `on_close` is called when the worker closes."""
        self._policy, self.description, self.slot = policy, policy.describe(), slot
        self.kind = kind
        self._statistics, self._clock = statistics, clock
        self.image_pool, self._on_close = ImageCodecPool(image_threads), on_close
        self._caching_policy = policy if isinstance(policy, CachingPolicy) else None
        # start of the last prediction
        self._last_prediction_ns = 0

    def warm_up(self, times: int) -> float:
        """
        Run the policy on an empty observation and return how long the last run took [s].

        Raises InferenceFailed.
        """
        request = blank_request('warm-up', self.description, seed=1)
        duration_ns = 0
        try:
            for _ in range(times):
                begin_ns = self._clock()
                (outcome,) = self._predict([request])
                if isinstance(outcome, InferenceFailed):
                    raise outcome
                duration_ns = self._clock() - begin_ns
        finally:
            self.reset(request.session_id)
            if self._caching_policy:
                # not counted: no request of a client
                self._caching_policy.take_cache_counts()
        return duration_ns / 1e9

    def reset(self, session_id: str) -> None:
        """Reset the policy's state of a session."""
        try:
            self._policy.reset(session_id)
        except Exception:
            # an error of a third-party policy; the session is closed in any case
            self._statistics.record_drop('reset_failed')

    def close(self) -> None:
        """Close the image threads and the policy, and release what was held for it."""
        self.image_pool.close()
        self._close_policy()
        self._on_close()

    def _close_policy(self) -> None:
        if isinstance(self._policy, ClosablePolicy):
            try:
                self._policy.close()
            except Exception:
                # an error of a third-party policy; it is unloaded in any case
                self._statistics.record_drop('close_failed')

    def process(self, batch: list[QueuedRequest]) -> list[tuple[QueuedRequest, Chunk]]:
        """Return each request with its chunk or its error reply."""
        begin_ns = self._clock()
        self._statistics.record_batch_start(begin_ns, len(batch))
        replies, tasks = [], []
        for queued in batch:
            read = self._decode(queued, begin_ns)
            if isinstance(read, InferenceTask):
                tasks.append(read)
            else:
                replies.append((queued, read))
        ready_ns = self._clock()
        if tasks:
            self._last_prediction_ns = begin_ns
        outcomes = self._predict([task.request for task in tasks]) if tasks else []
        times = BatchTimes(begin_ns, ready_ns, self._clock())
        for task, outcome in zip(tasks, outcomes, strict=True):
            replies.append((task.queued, self._reply(task, outcome, times)))
        self._record_cache()
        self._statistics.record_batch_end(self._clock(), len(tasks))
        return replies

    def _record_cache(self) -> None:
        if self._caching_policy:
            counts = self._caching_policy.take_cache_counts()
            self._statistics.record_cache(hits=counts.hits, misses=counts.misses)

    def _decode(self, queued: QueuedRequest, begin_ns: int) -> InferenceTask | Chunk:
        """Return the decoded and checked request, or its error reply."""
        late_s = self._expected_lateness_s(queued, begin_ns)
        if late_s > 0:
            text = (
                f'the reply is expected {late_s:.3f} s after reply_deadline_s '
                f'({queued.session.request.reply_deadline_s:g} s); the server is overloaded'
            )
            return self._error_reply(queued, Status.TOO_LATE, 'too_late', text, begin_ns)
        try:
            observation = queued.decoded.observation = wire_observation.decode(queued.raw)
            request, ignored = make_policy_request(
                observation, queued.session, self.description, self.image_pool
            )
        except Malformed as error:
            return self._error_reply(
                queued, Status.BAD_OBSERVATION, error.reason, str(error), begin_ns
            )
        return InferenceTask(queued, observation, request, ignored)

    def _expected_lateness_s(self, queued: QueuedRequest, begin_ns: int) -> float:
        """Return the expected delay of the reply beyond reply_deadline_s; 0 or less if in time."""
        within_s = queued.session.request.reply_deadline_s
        waited_s = (begin_ns - queued.arrived_ns) / 1e9
        if not within_s or waited_s > within_s:
            return waited_s - within_s if within_s else 0.0
        if begin_ns - self._last_prediction_ns > MAX_ESTIMATE_AGE_NS:
            # the estimate is old; only a prediction updates it
            return 0.0
        return waited_s + self._statistics.optimistic_service_s() - within_s

    def _predict(self, requests: list[PolicyRequest]) -> list[Prediction | InferenceFailed]:
        """Predict the batch; if that fails, each request alone, to isolate the bad one."""
        try:
            predictions = self._policy.predict(requests)
            if len(predictions) != len(requests):
                text = f'{len(predictions)} predictions for {len(requests)} requests'
                raise ValueError(text)
        except BaseException as error:
            if not is_library_error(error):
                raise
            text = f'the policy raised {type(error).__name__}: {error}'
        else:
            return [checked_prediction(each, self.description) for each in predictions]
        # after the block, which holds the error, and with it all that the batch had allocated
        if len(requests) == 1:
            return [InferenceFailed(Status.POLICY_ERROR, text)]
        return [outcome for one in requests for outcome in self._predict([one])]

    def _reply(
        self, task: InferenceTask, outcome: Prediction | InferenceFailed, times: BatchTimes
    ) -> Chunk:
        queued = task.queued
        if isinstance(outcome, InferenceFailed):
            if self.description.state_class == StateClass.RECURRENT:
                # do not reuse the state that led to the failure
                self.reset(queued.session.session_id)
            status, seed = outcome.status, task.request.seed
            return self._error_reply(
                queued, status, status.name.lower(), str(outcome), times.begin_ns, seed=seed
            )
        wait_ms = (times.begin_ns - queued.arrived_ns) / 1e6
        policy_ms = (times.done_ns - times.ready_ns) / 1e6
        inference_ms = policy_ms if outcome.forward_ms is None else outcome.forward_ms
        self._statistics.record_chunk(
            wait_ms=wait_ms,
            inference_ms=inference_ms,
            denoise_steps=self.description.denoise_steps,
            state_found=outcome.state_found,
            state_lost=outcome.state_lost,
        )
        flags = Flag.PREFIX_IGNORED if task.prefix_ignored else Flag.NONE
        if outcome.state_lost:
            flags |= Flag.STATE_LOST
            self._statistics.record_drop('state_lost')
        if queued.session.answers.is_other(self.description.fingerprint):
            flags |= Flag.POLICY_CHANGED
        return Chunk(
            task.observation.header.for_reply(flags),
            task.observation.client_id,
            task.observation.episode_id,
            outcome.robot,
            outcome.model,
            slot=self.slot,
            policy=self.description.fingerprint,
            seed=task.request.seed,
            queue_wait_ms=wait_ms,
            processing_ms=(times.done_ns - times.begin_ns) / 1e6 - inference_ms,
            inference_ms=inference_ms,
            server_load=self._statistics.load(times.done_ns),
            superseded=queued.superseded,
        )

    def _error_reply(
        self,
        queued: QueuedRequest,
        status: Status,
        reason: str,
        text: str,
        begin_ns: int,
        *,
        seed: int = 0,
    ) -> Chunk:
        self._statistics.record_drop(reason, has_request_record=True)
        return error_chunk(
            queued.raw,
            status,
            text,
            slot=self.slot,
            policy=self.description.fingerprint,
            seed=seed,
            queue_wait_ms=(begin_ns - queued.arrived_ns) / 1e6,
            server_load=self._statistics.load(self._clock()),
            superseded=queued.superseded,
        )


def checked_prediction(
    prediction: Prediction, description: PolicyDescription
) -> Prediction | InferenceFailed:
    """Return the prediction as float32 arrays, or the failure of its check."""
    try:
        model = as_float32(prediction.model)
        is_same = prediction.robot is prediction.model
        robot = model if is_same else as_float32(prediction.robot)
        forward_ms = prediction.forward_ms
        forward_ms = None if forward_ms is None else float(forward_ms)
        sent = Prediction(
            model,
            robot,
            bool(prediction.state_lost),
            forward_ms,
            bool(prediction.state_found),
        )
    except Exception as error:
        text = f'the prediction is not numeric ({type(error).__name__}: {error})'
        return InferenceFailed(Status.POLICY_ERROR, text)
    columns = len(description.action_names)
    # most policies return one array for both
    chunks = (('model', model),) if robot is model else (('model', model), ('robot', robot))
    for name, chunk in chunks:
        if chunk.ndim != 2 or chunk.shape[1] != columns or not len(chunk):
            text = f'the {name} chunk must be rows x {columns} actions, got {chunk.shape}'
            return InferenceFailed(Status.POLICY_ERROR, text)
        if not is_finite(chunk):
            return InferenceFailed(Status.NOT_FINITE, f'the {name} chunk holds NaN or infinity')
    if len(model) != len(robot):
        text = f'the model chunk has {len(model)} rows, the robot chunk {len(robot)}'
        return InferenceFailed(Status.POLICY_ERROR, text)
    return sent


def as_float32(values: object) -> Float32Array:
    """Return float32 values; values out of range become infinite."""
    if type(values) is np.ndarray and values.dtype == np.float32:
        return values
    with np.errstate(over='ignore'):
        return np.asarray(values, np.float32)
