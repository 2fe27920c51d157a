# SPDX-License-Identifier: Apache-2.0
"""What a request of a robot is made of, what its reply needs, and its end. Plain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.data_path.chunk import Chunk, retry_after_s
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.records import CameraSpec, OpenSessionResponse
from lerobot_serve.contract.schema import Refusal, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.edge.action_queue import QueueMark
from lerobot_serve.edge.inputs.latest import HistoryStep, ObservationHistory
from lerobot_serve.session.machine import SESSION_ENDING, SessionMachine

# status of a request's end, unless the server's status applies
OK, TIMED_OUT, ABANDONED = 'ok', 'timed_out', 'abandoned'
# of a reply after which another session is required; foreign: another policy than agreed
ENDS_SESSION = 'foreign_policy', *(status.name.lower() for status in SESSION_ENDING)
# half a minute at 30 Hz; docs/architecture.md has its memory cost
MAX_HISTORY_STEPS = 1000
# one row of state for each observation, and the encoded frames
RobotInputs = tuple[Float32Array, tuple[Image, ...]]


class ObservationReader(Protocol):
    """Opens, checks and encodes inputs; implemented by inputs.observation_builder."""

    def begin_session(self, cameras: tuple[CameraSpec, ...]) -> None:
        """Use the frame sizes that the server stated."""

    def read(self, steps: tuple[HistoryStep, ...]) -> RobotInputs:
        """Return states and images, oldest first. Raises Malformed or Unencodable."""


def check_agreement(agreement: OpenSessionResponse) -> None:
    """Raise SessionRefused for a history longer than the robot keeps."""
    steps, stride_steps = agreement.observation_steps, agreement.observation_stride_steps
    given = f'the server requires {steps} observations per request, {stride_steps} control steps '
    if steps < 1 or stride_steps < 1:
        raise SessionRefused(
            Refusal.WRONG_POLICY,
            f'{given}apart; both must be 1 or more: correct or update the server',
        )
    reach_steps = (steps - 1) * stride_steps
    if reach_steps > MAX_HISTORY_STEPS:
        raise SessionRefused(
            Refusal.WRONG_POLICY,
            f'{given}apart, which reach {reach_steps} steps back; a robot keeps '
            f'{MAX_HISTORY_STEPS}: use a policy with a shorter history',
        )


@dataclass(slots=True)
class RequestParts:
    """Of one robot; `executed` returns the execution report since the last request."""

    history: ObservationHistory
    observations: ObservationReader
    executed: Callable[[], ExecutionReport]


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """The data of a request that its reply needs; its actions count from `marked_ns`."""

    header: Header
    # when `mark` was taken: before the frames were encoded
    marked_ns: int
    captured_ns: int
    mark: QueueMark
    episode_id: str
    # whether the chunk continues the queue, so that it may replace it
    continues_prefix: bool = False

    @property
    def sent_ns(self) -> int:
        return self.header.client_mono_ns


RobotSession = SessionMachine[PendingRequest]


@dataclass(frozen=True, slots=True, eq=False)
class RequestEnd:
    """
    The end of a request; each request with a seq has exactly one.

    status  OK for a merged chunk, TIMED_OUT, ABANDONED, or the error of the reply
    reason  why it was abandoned, as one word; for a reply without actions the server's text
    chunk   the reply, None without one
    """

    request: PendingRequest
    at_ns: int
    status: str
    reason: str = ''
    chunk: Chunk | None = None
    chunk_bytes: int | None = None

    @property
    def is_without_actions(self) -> bool:
        """Whether the server replied in the session, and with no usable actions."""
        return self.status not in (OK, TIMED_OUT, ABANDONED, *ENDS_SESSION)

    @property
    def retry_after_s(self) -> float:
        """When a server whose quota is used up admits the next request; 0: it does not say."""
        chunk = self.chunk
        return retry_after_s(chunk) if chunk and chunk.status == Status.QUOTA else 0.0
