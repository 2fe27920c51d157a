"""
Answers requests with one policy, and survives whatever is in them. Inference thread.

Several requests may be answered together; what is wrong with one of them is no trouble of the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import time

import numpy as np

from lerobot_serve.policies.base import Policy, PolicyDescription, PolicyRequest, Prediction
from lerobot_serve.server.inference.request_queue import QueuedRequest
from lerobot_serve.server.inference.request_validation import make_policy_request
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.header import read_envelope
from lerobot_serve.wire.image_codec import ImageCodecPool
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Flag, StateClass, Status, TEXT_LIMIT

Clock = Callable[[], int]
# what is expected to come too late is predicted all the same after so long without a prediction
MAX_ESTIMATE_AGE_NS = 1_000_000_000


class InferenceFailed(Exception):
    """The policy raised, or gave what cannot be sent; `status` says which."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class InferenceTask:
    """One request on its way through the worker."""

    mail: QueuedRequest
    observation: Observation
    request: PolicyRequest
    prefix_ignored: bool


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """When a batch began, when its requests were decoded, when the policy was done."""

    begin_ns: int
    ready_ns: int
    done_ns: int


class InferenceWorker:
    """Built and used by the inference thread; `answer` never raises for bad input."""

    def __init__(
        self,
        policy: Policy,
        *,
        slot: str,
        statistics: ServerStatistics,
        image_threads: int,
        clock: Clock = time.monotonic_ns,
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        """`let_go` is called once the policy is of no more use."""
        self._policy, self.served, self.slot = policy, policy.describe(), slot
        self._statistics, self._clock = statistics, clock
        self.images, self._let_go = ImageCodecPool(image_threads), let_go
        # when the policy was asked last
        self._predicted_ns = 0

    def warm_up(self, times: int) -> float:
        """
        Run the policy on an empty observation and return how long the last run took [s].

        Raises InferenceFailed.
        """
        request = warm_up_request(self.served)
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
        return duration_ns / 1e9

    def reset(self, session_id: str) -> None:
        """Let the policy forget a session."""
        try:
            self._policy.reset(session_id)
        except Exception:
            # of a stranger's policy; the session is gone either way
            self._statistics.drop('reset_failed')

    def close(self) -> None:
        """End the image threads, and give back what was reserved."""
        self.images.close()
        self._let_go()

    def answer(self, mails: list[QueuedRequest]) -> list[tuple[QueuedRequest, Chunk]]:
        """
        Return, for each request, the chunk, or the chunk that says why there is none.
        """
        begin_ns = self._clock()
        self._statistics.begin(begin_ns, len(mails))
        answers, tasks = [], []
        for mail in mails:
            read = self._read(mail, begin_ns)
            if isinstance(read, InferenceTask):
                tasks.append(read)
            else:
                answers.append((mail, read))
        ready_ns = self._clock()
        if tasks:
            self._predicted_ns = begin_ns
        outcomes = self._predict([task.request for task in tasks]) if tasks else []
        times = BatchTimes(begin_ns, ready_ns, self._clock())
        for task, outcome in zip(tasks, outcomes, strict=True):
            answers.append((task.mail, self._conclude(task, outcome, times)))
        self._statistics.end(self._clock(), len(tasks))
        return answers

    def _read(self, mail: QueuedRequest, begin_ns: int) -> InferenceTask | Chunk:
        """Decode and check; a Chunk says what is wrong."""
        late_s = self._expected_lateness_s(mail, begin_ns)
        if late_s > 0:
            text = (
                f'the answer would have come {late_s:.3f} s too late to be used '
                f'(answer_within_s is {mail.session.ask.answer_within_s:g}); the server is busy'
            )
            return self._failure(mail, Status.TOO_LATE, 'too_late', text, begin_ns)
        try:
            observation = mail.read.observation = wire_observation.decode(mail.raw)
            request, ignored = make_policy_request(
                observation, mail.session, self.served, self.images
            )
        except Malformed as error:
            return self._failure(mail, Status.BAD_OBSERVATION, error.reason, str(error), begin_ns)
        return InferenceTask(mail, observation, request, ignored)

    def _expected_lateness_s(self, mail: QueuedRequest, begin_ns: int) -> float:
        """Return by how much the answer would miss its use, 0 or less when it would not."""
        within_s = mail.session.ask.answer_within_s
        waited_s = (begin_ns - mail.arrived_ns) / 1e9
        if not within_s or waited_s > within_s:
            return waited_s - within_s if within_s else 0.0
        if begin_ns - self._predicted_ns > MAX_ESTIMATE_AGE_NS:
            # what was slow may be slow no more, and only a prediction can tell
            return 0.0
        return waited_s + self._statistics.optimistic_service_s() - within_s

    def _predict(self, requests: list[PolicyRequest]) -> list[Prediction | InferenceFailed]:
        """Ask for all together; when that fails, for each alone, to find the one that is bad."""
        try:
            predictions = self._policy.predict(requests)
            if len(predictions) != len(requests):
                text = f'{len(predictions)} predictions for {len(requests)} requests'
                raise ValueError(text)
        except Exception as error:
            if len(requests) > 1:
                return [outcome for one in requests for outcome in self._predict([one])]
            text = f'the policy raised {type(error).__name__}: {error}'
            return [InferenceFailed(Status.POLICY_ERROR, text)]
        return [checked_prediction(prediction, self.served) for prediction in predictions]

    def _conclude(
        self, task: InferenceTask, outcome: Prediction | InferenceFailed, times: BatchTimes
    ) -> Chunk:
        mail = task.mail
        if isinstance(outcome, InferenceFailed):
            if self.served.state_class == StateClass.RECURRENT:
                # a state that led to this must not lead to more
                self.reset(mail.session.session_id)
            status, seed = outcome.status, task.request.seed
            return self._failure(
                mail, status, status.name.lower(), str(outcome), times.begin_ns, seed=seed
            )
        wait_ms = (times.begin_ns - mail.arrived_ns) / 1e6
        policy_ms = (times.done_ns - times.ready_ns) / 1e6
        inference_ms = policy_ms if outcome.forward_ms is None else outcome.forward_ms
        self._statistics.served(
            wait_ms=wait_ms,
            inference_ms=inference_ms,
            denoise_steps=self.served.denoise_steps,
            found=outcome.state_found,
            lost=outcome.state_lost,
        )
        flags = Flag.PREFIX_IGNORED if task.prefix_ignored else Flag.NONE
        if outcome.state_lost:
            flags |= Flag.STATE_LOST
            self._statistics.drop('state_lost')
        return Chunk(
            task.observation.header.answer(flags),
            task.observation.client_id,
            task.observation.episode_id,
            outcome.robot,
            outcome.model,
            slot=self.slot,
            policy=self.served.fingerprint,
            seed=task.request.seed,
            queue_wait_ms=wait_ms,
            processing_ms=(times.done_ns - times.begin_ns) / 1e6 - inference_ms,
            inference_ms=inference_ms,
            server_load=self._statistics.load(times.done_ns),
            superseded=mail.superseded,
        )

    def _failure(
        self,
        mail: QueuedRequest,
        status: Status,
        reason: str,
        text: str,
        begin_ns: int,
        *,
        seed: int = 0,
    ) -> Chunk:
        self._statistics.drop(reason, has_request_record=True)
        return error_chunk(
            mail.raw,
            status,
            text,
            slot=self.slot,
            policy=self.served.fingerprint,
            seed=seed,
            queue_wait_ms=(begin_ns - mail.arrived_ns) / 1e6,
            server_load=self._statistics.load(self._clock()),
            superseded=mail.superseded,
        )


def error_chunk(raw: bytes, status: Status, text: str, **more: object) -> Chunk:
    """Return the answer that says why there are no actions. Raises Malformed for no request."""
    header, client_id, episode_id = read_envelope(raw)
    return Chunk(
        header.answer(Flag.NONE),
        client_id,
        episode_id,
        status=status,
        status_text=encodable_text(text),
        **more,
    )


def warm_up_request(served: PolicyDescription) -> PolicyRequest:
    """Return a request with zeros for everything that the policy expects."""
    steps = served.observation_steps
    images = {
        c.name: (np.zeros((c.height, c.width, c.channels), np.uint8),) * steps
        for c in served.cameras
    }
    state = np.zeros((steps, len(served.state_names)), np.float32)
    return PolicyRequest('warm-up', state, images, episode_start=True, seed=1)


def checked_prediction(
    prediction: Prediction, served: PolicyDescription
) -> Prediction | InferenceFailed:
    """Return the prediction as it can be sent, or what is wrong with it."""
    try:
        model, robot = as_float32(prediction.model), as_float32(prediction.robot)
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
        text = f'the policy gave no numbers ({type(error).__name__}: {error})'
        return InferenceFailed(Status.POLICY_ERROR, text)
    columns = len(served.action_names)
    for name, chunk in (('model', model), ('robot', robot)):
        if chunk.ndim != 2 or chunk.shape[1] != columns or not len(chunk):
            text = f'the {name} chunk must be rows x {columns} actions, got {chunk.shape}'
            return InferenceFailed(Status.POLICY_ERROR, text)
        if not np.isfinite(chunk).all():
            return InferenceFailed(Status.NOT_FINITE, f'the {name} chunk holds NaN or infinity')
    if len(model) != len(robot):
        text = f'the model chunk has {len(model)} rows, the robot chunk {len(robot)}'
        return InferenceFailed(Status.POLICY_ERROR, text)
    return sent


def as_float32(values: object) -> np.ndarray:
    """Return the numbers as the message holds them: what is too large there becomes infinite."""
    with np.errstate(over='ignore'):
        return np.asarray(values, np.float32)


def encodable_text(text: str) -> str:
    """Return what a message can hold of a text, which may come from anywhere."""
    data = text.replace('\0', ' ').encode('utf-8', 'replace')
    return data[:TEXT_LIMIT].decode(errors='ignore')
