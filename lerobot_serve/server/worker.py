"""
The one thread that owns the policy: takes a request, answers it, and survives whatever is in it.

`answer` is plain and needs no thread; `run` is the loop around it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import time

import numpy as np

from lerobot_serve.policies.base import Policy, PolicyRequest
from lerobot_serve.server.intake import policy_request
from lerobot_serve.server.mailbox import Mail, Mailbox
from lerobot_serve.server.statistics import Statistics
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.errors import Malformed, Unencodable
from lerobot_serve.wire.header import peek
from lerobot_serve.wire.images import ImagePool
from lerobot_serve.wire.schema import Flag, Status, TEXT_LIMIT

Clock = Callable[[], int]
Send = Callable[[str, bytes], None]


class PolicyFailed(Exception):
    """The policy raised, or gave what cannot be sent; `status` says which."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class Worker:
    """
    Answers mail with one policy. Built by the node; `run`, `warm_up` and `answer` in one thread.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        slot: str,
        statistics: Statistics,
        image_threads: int,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        self._policy, self._served, self._slot = policy, policy.describe(), slot
        self._statistics, self._clock = statistics, clock
        self._images = ImagePool(image_threads)
        self._ended: deque[str] = deque()

    def forget(self, session_id: str) -> None:
        """Let the policy forget a session before its next inference; any thread."""
        self._ended.append(session_id)

    def run(self, mailbox: Mailbox, send: Send) -> None:
        """Answer until the mailbox is closed."""
        try:
            while mail := mailbox.take():
                try:
                    raw = wire_chunk.encode(self.answer(mail))
                except (Malformed, Unencodable):
                    # one robot's request must not end the service of the others
                    self._statistics.drop('unanswerable')
                    continue
                send(mail.session.ask.reply_topic, raw)
        finally:
            self._images.close()

    def warm_up(self, times: int) -> None:
        """Run the policy on an empty observation. Raises what the policy raises."""
        served = self._served
        request = PolicyRequest(
            'warm-up',
            np.zeros((served.observation_steps, len(served.state_names)), np.float32),
            {c.name: np.zeros((c.height, c.width, c.channels), np.uint8) for c in served.cameras},
        )
        for _ in range(times):
            self._predict(request)
        self.forget('warm-up')

    def answer(self, mail: Mail) -> Chunk:
        """
        Return the chunk, or the chunk that says why there is none; never raises for bad input.
        """
        begin_ns = self._clock()
        wait_ms = (begin_ns - mail.arrived_ns) / 1e6
        try:
            observation = wire_observation.decode(mail.raw)
            request, ignored = policy_request(
                observation, mail.session, self._served, self._images
            )
            ready_ns = self._clock()
            model, robot = self._predict(request)
        except Malformed as error:
            self._statistics.drop(error.reason)
            return self._failure(mail, Status.BAD_OBSERVATION, str(error), wait_ms)
        except PolicyFailed as error:
            self._statistics.drop(error.status.name.lower())
            return self._failure(mail, error.status, str(error), wait_ms)
        end_ns = self._clock()
        inference_ms = (end_ns - ready_ns) / 1e6
        self._statistics.served(
            begin_ns=begin_ns, end_ns=end_ns, wait_ms=wait_ms, inference_ms=inference_ms
        )
        return Chunk(
            observation.header.answer(Flag.PREFIX_IGNORED if ignored else Flag.NONE),
            observation.client_id,
            observation.episode_id,
            robot,
            model,
            slot=self._slot,
            policy=self._served.fingerprint,
            queue_wait_ms=wait_ms,
            processing_ms=(ready_ns - begin_ns) / 1e6,
            inference_ms=inference_ms,
            server_load=self._statistics.load(end_ns),
            superseded=mail.superseded,
        )

    def _predict(self, request: PolicyRequest) -> tuple[np.ndarray, np.ndarray]:
        """Return the checked model-space and robot-space chunks. Raises PolicyFailed."""
        try:
            while self._ended:
                self._policy.reset(self._ended.popleft())
            (prediction,) = self._policy.predict([request])
            model, robot = as_sent(prediction.model), as_sent(prediction.robot)
        except Exception as error:
            text = f'the policy raised {type(error).__name__}: {error}'
            raise PolicyFailed(Status.POLICY_ERROR, text) from error
        columns = len(self._served.action_names)
        for name, chunk in (('model', model), ('robot', robot)):
            if chunk.ndim != 2 or chunk.shape[1] != columns or not len(chunk):
                text = f'the {name} chunk must be rows x {columns} actions, got {chunk.shape}'
                raise PolicyFailed(Status.POLICY_ERROR, text)
            if not np.isfinite(chunk).all():
                raise PolicyFailed(Status.NOT_FINITE, f'the {name} chunk holds NaN or infinity')
        if len(model) != len(robot):
            text = f'the model chunk has {len(model)} rows, the robot chunk {len(robot)}'
            raise PolicyFailed(Status.POLICY_ERROR, text)
        return model, robot

    def _failure(self, mail: Mail, status: Status, text: str, wait_ms: float) -> Chunk:
        # the mail was peeked at on arrival, so its start can be read again
        header, client_id, episode_id = peek(mail.raw)
        return Chunk(
            header.answer(Flag.NONE),
            client_id,
            episode_id,
            status=status,
            status_text=sendable(text),
            slot=self._slot,
            policy=self._served.fingerprint,
            queue_wait_ms=wait_ms,
            server_load=self._statistics.load(self._clock()),
            superseded=mail.superseded,
        )


def as_sent(values: object) -> np.ndarray:
    """Return the numbers as the message holds them: what is too large there becomes infinite."""
    with np.errstate(over='ignore'):
        return np.asarray(values, np.float32)


def sendable(text: str) -> str:
    """Return what a message can hold of a text, which may come from anywhere."""
    data = text.replace('\0', ' ').encode('utf-8', 'replace')
    return data[:TEXT_LIMIT].decode(errors='ignore')
