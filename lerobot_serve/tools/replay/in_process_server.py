# SPDX-License-Identifier: Apache-2.0
"""
Serves a policy as a policy_server does, in the thread of the caller.

The server opens a session at its first request, under the recorded name, because the seed of a
request depends on the name. A replay compares numbers and moves no joint, so names and rate that a
LeRobot policy lacks get placeholders. One thread.
"""

from __future__ import annotations

from dataclasses import replace
import math
from typing import Any

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Envelope
from lerobot_serve.contract.data_path.observation import check_type, read_queue_remaining
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.contract.schema import Codec, StateClass, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from lerobot_serve.policies.lerobot.checkpoint.features import feature_sizes, unspecified_options
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.inference import policy_loading
from lerobot_serve.server.inference.request_queue import RequestQueue
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_table import Session
from lerobot_serve.tools.replay.sources import ReplayError

REPLY_TOPIC = '/replay/replies/none'
# session id of requests without a session
ONE_SHOT_PREFIX = 'predict_chunk#'


class InProcessServer:
    """See the module."""

    def __init__(
        self,
        parameters: ServerParameters,
        default_path: str = '',
        *,
        robot_type: str = '',
        execution_horizon: int = 0,
    ) -> None:
        """
        Load and warm up the policy. `robot_type` and `execution_horizon` are those of OpenSession,
        which requests do not repeat. Raises PolicyError.
        """
        self._statistics, self._request_queue = ServerStatistics(), RequestQueue()
        worker = policy_loading.load_worker(parameters, default_path, self._statistics)
        self._core = ServerCore(worker, self._request_queue, self._statistics, parameters)
        self._core.accept_requests()
        self.served = worker.description
        self._robot_type, self._execution_horizon = robot_type, execution_horizon
        # session -> its episode
        self._episodes: dict[str, int] = {}

    def reply_to(self, raw: bytes, info: dict[str, Any], *, state_lost: bool = False) -> Chunk:
        """
        Return the reply to a request. `state_lost`: the server had lost the hidden state.

        Raises Malformed, ReplayError.
        """
        key = str(info.get('session_id') or '')
        if key.startswith(ONE_SHOT_PREFIX):
            return self._reply_one_shot(key, raw)
        # what a server drops without a reply would be waited for without end
        start, _ = read_queue_remaining(raw)
        check_type(start.header.msg_type)
        session = self._session(start, info)
        if self._episodes.get(session.session_id) != start.header.episode:
            self._episodes[session.session_id] = start.header.episode
            self._core.start_episode(session, start.header.episode)
        if state_lost:
            self._core.worker.reset(session.session_id)
        arrival = self._core.enqueue(raw, 0)
        if arrival and arrival.refusal:
            return arrival.refusal
        return self._next()

    def inference_ms(self, raw: bytes, info: dict[str, Any]) -> float:
        """
        Return the inference time of a request that was replied to before, in its session, as its
        prefix takes time, too; infinite if it fails.
        """
        chunk = self.reply_to(raw, info)
        return chunk.inference_ms if chunk.status == Status.OK else math.inf

    def _reply_one_shot(self, key: str, raw: bytes) -> Chunk:
        """Return the reply to a request without a session, as the action PredictChunk does."""
        refused = self._core.enqueue_one_shot(key, raw, 0, lambda _: None)
        if refused:
            return refused
        chunk = self._next()
        self._core.worker.reset(key)
        return chunk

    def _next(self) -> Chunk:
        ((_, chunk),) = self._core.worker.process(self._request_queue.take_batch() or [])
        return chunk

    def close(self) -> None:
        self._core.worker.close()

    def _session(self, start: Envelope, info: dict[str, Any]) -> Session:
        """Return the open session of a request. Raises ReplayError."""
        sessions, header = self._core.sessions, start.header
        session = sessions.find(start.client_id, header.session_epoch)
        if session:
            return session
        is_exclusive = self.served.state_class == StateClass.EXCLUSIVE
        # one session at a time, as recorded: of all robots, or of this one. It may be an older one
        # than that of the last request, when several recordings or one request twice are replayed
        self._end([each for each in sessions if is_exclusive or of_client(each, start)])
        request = OpenSessionRequest(
            client_id=start.client_id,
            instance=0,
            session_epoch=header.session_epoch,
            reply_topic=REPLY_TOPIC,
            state_names=self.served.state_names,
            action_names=self.served.action_names,
            cameras=tuple(CameraSpec(c.name, channels=c.channels) for c in self.served.cameras),
            fps=self.served.trained_fps or 1.0,
            schema_version=header.schema_version,
            robot_type=str(info.get('robot_type') or self._robot_type),
            task=str(info.get('task') or ''),
            wants_rtc=True,
            codec=Codec.JPEG,
            rtc_execution_horizon=int(
                info.get('rtc_execution_horizon') or self._execution_horizon
            ),
        )
        try:
            return self._core.open(request, 0)[0]
        except SessionRefused as refused:
            raise ReplayError(f'{start.client_id!r} cannot be replayed: {refused}') from refused

    def _end(self, sessions: list[Session]) -> None:
        for session in sessions:
            self._core.sessions.close(session.request.client_id, session.request.session_epoch)
            self._episodes.pop(session.session_id, None)
        self._core.end_sessions(sessions, 'session_ended')


def of_client(session: Session, request: Envelope) -> bool:
    return session.request.client_id == request.client_id


PLACEHOLDER_RATE_HZ = 1.0


def with_placeholder_names(parameters: ServerParameters) -> ServerParameters:
    """Return the parameters, completed for a LeRobot policy. Raises PolicyError."""
    if parameters.policy_kind != 'lerobot':
        return parameters
    folder = read_checkpoint(parameters.policy_path)
    states, actions = feature_sizes(folder)
    placeholders: dict[str, Any] = {
        'state_names': tuple(f'state_{i}' for i in range(states)),
        'action_names': tuple(f'action_{i}' for i in range(actions)),
        'trained_fps': PLACEHOLDER_RATE_HZ,
    }
    missing = unspecified_options(
        folder, policy_loading.load_options(parameters, parameters.policy_path)
    )
    return replace(parameters, **{name: placeholders[name] for name in missing})
