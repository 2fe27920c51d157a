# SPDX-License-Identifier: Apache-2.0
"""What one session knows: its numbers, its episode, its history, what was agreed. Any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
import secrets
import threading

import numpy as np

from lerobot_serve.client.errors import AWAIT_EACH, Superseded
from lerobot_serve.client.results import NO_CAGE
from lerobot_serve.client.session.inputs import ObservationHistory, Observed
from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import (
    CameraSpec,
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
)
from lerobot_serve.contract.schema import Codec
from lerobot_serve.contract.types import KeyValue
from lerobot_serve.session.numbers import SessionNumbers

# why a request of an earlier episode is superseded
EPISODE_ENDED = 'its episode ended'


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is opened with; `timeout_s` is the deadline of a request at the server."""

    client_id: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[CameraSpec, ...]
    fps: float
    timeout_s: float
    task: str = ''
    policy: str = ''
    codec: Codec = Codec.RAW
    jpeg_quality: int = 90
    tags: tuple[tuple[str, str], ...] = ()
    # distinguishes this process from another one with the same client_id
    instance: int = field(default_factory=lambda: secrets.randbits(63))


class SessionState:
    """See the module. `is_open` and `why_lost` are read without the lock."""

    def __init__(self, settings: SessionSettings) -> None:
        self.settings = settings
        self.agreement: OpenSessionResponse | None = None
        self.is_open = False
        # why there is no session, from the server; empty while nothing is known
        self.why_lost = ''
        self.sessions_opened = self.requests_sent = 0
        # the request of the session that was requested last
        self.last_request: OpenSessionRequest | None = None
        self._lock = threading.Lock()
        self._numbers, self._task = SessionNumbers(settings.client_id), settings.task
        self._numbers.begin_episode()
        self._history = ObservationHistory(1, 1)
        self._last_fingerprint = ''

    @property
    def episode_id(self) -> str:
        return self._numbers.episode_id

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth reading before the first prediction."""
        agreement = self.agreement
        if agreement is None:
            return (NO_CAGE,)
        if not self.keeps_history:
            return (NO_CAGE, *agreement.warnings)
        return (
            NO_CAGE,
            *agreement.warnings,
            f'the policy takes {agreement.observation_steps} observations in each request, '
            f'{agreement.observation_stride_steps} control steps apart: call observe() at each '
            'control step without a prediction',
        )

    @property
    def keeps_history(self) -> bool:
        """Whether an observation is sent with later ones, too."""
        return self.agreement is not None and self.agreement.observation_steps > 1

    def next_session_request(self, reply_topic: Callable[[int], str]) -> OpenSessionRequest:
        """Return the request of another session."""
        with self._lock:
            epoch, given = self._numbers.next_session_epoch(), self.settings
            self.last_request = OpenSessionRequest(
                schema_version=SCHEMA_VERSION,
                client_id=given.client_id,
                instance=given.instance,
                session_epoch=epoch,
                reply_topic=reply_topic(epoch),
                state_names=given.state_names,
                action_names=given.action_names,
                cameras=given.cameras,
                fps=given.fps,
                robot_type='python client',
                policy=given.policy,
                task=self._task,
                codec=given.codec,
                reply_deadline_s=given.timeout_s,
                tags=tuple(KeyValue(*tag) for tag in given.tags),
            )
            return self.last_request

    def begin_session(self, agreement: OpenSessionResponse) -> None:
        """Use the session that was requested last."""
        with self._lock:
            self.agreement, self.is_open, self.why_lost = agreement, True, ''
            self.sessions_opened += 1
            self._numbers.begin_session(agreement.schema_version)
            steps, stride_steps = agreement.observation_steps, agreement.observation_stride_steps
            self._history = self._history.resized(max(1, steps), max(1, stride_steps))

    def end_session(self, why: str) -> None:
        """The server has no session of this client any more."""
        self.is_open, self.why_lost = False, why

    def begin_episode(self, task: str | None, episode_id: str) -> str:
        """Begin the next episode; return its id."""
        with self._lock:
            self._task = self.settings.task if task is None else task
            self._history.clear()
            self._numbers.begin_episode(episode_id)
            return self.episode_id

    def reset_request(self) -> ResetEpisodeRequest:
        """Return the announcement of the present episode."""
        with self._lock:
            return self._numbers.reset_request()

    def observe(self, observed: Observed) -> None:
        """Add the observation of a control step."""
        with self._lock:
            self._history.add(observed)

    def next_observation(self, task: str | None, now_ns: int) -> Observation:
        """Return a request of the newest observation. Raises Unencodable and Superseded."""
        with self._lock:
            assert self.agreement
            rows, episode_id = self._history.rows(), self.episode_id
            if not rows:
                # another thread began the next episode after this one had observed
                raise Superseded(EPISODE_ENDED, AWAIT_EACH)
            header = self._numbers.next_header(now_ns)
            task = self._task if task is None else task
            codec = Codec(self.agreement.codec)
        return Observation(
            header,
            self.settings.client_id,
            episode_id,
            state=np.stack([observed.state for observed, _ in rows]),
            images=self._images(rows, codec),
            task=task,
        )

    def on_sent(self) -> None:
        """Count a request."""
        with self._lock:
            self.requests_sent += 1

    def on_chunk(self, header: Header, fingerprint: str) -> bool:
        """
        Note the policy of a chunk, and that the server knows the start of its episode; return
        whether the chunk before was of another policy.
        """
        with self._lock:
            if not self._numbers.mismatch(header):
                self._numbers.awaits_start = False
            before, self._last_fingerprint = self._last_fingerprint, fingerprint
        return bool(before) and before != fingerprint

    def _images(self, rows: tuple[tuple[Observed, int], ...], codec: Codec) -> tuple[Image, ...]:
        quality = self.settings.jpeg_quality
        return tuple(
            image_codec.encode(name, frame, codec, quality=quality, steps_back=steps_back)
            for observed, steps_back in rows
            for name, frame in observed.frames.items()
        )
