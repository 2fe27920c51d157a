# SPDX-License-Identifier: Apache-2.0
"""Fill the ROS messages of the policy server: status, session replies. Any thread."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lerobot_serve.contract import records
from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.limits import REASON_LIMIT, SCHEMA_VERSION, SCHEMA_VERSION_MIN
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services import action_range
from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_table import Session
from lerobot_serve.telemetry.process_memory import resident_memory_mb
from lerobot_serve_interfaces.msg import CameraSpec, DropCount, Extension, ServerStatus
from lerobot_serve_interfaces.srv import GetStatus, OpenSession

SwapState = records.ServerStatus.Swap
UNCONFIGURED_TEXT = 'no policy is loaded; configure the node'


@dataclass(frozen=True, slots=True)
class ServerState:
    """A state of ServerStatus with its text."""

    state: int
    text: str = ''

    @property
    def name(self) -> str:
        return records.ServerStatus.State.of(self.state).word


@dataclass(frozen=True, slots=True)
class SwapStatus:
    """How the last swap of the policy ended, in a word and in a sentence."""

    state: SwapState = SwapState.NONE
    text: str = ''


NO_SWAP = SwapStatus()


class ServerNode(Protocol):
    """The members of the node that its services and the swap of its policy use."""

    # None unless configured
    core: ServerCore | None
    server_state: ServerState

    @property
    def parameters(self) -> ServerParameters: ...

    @property
    def inactive_reason(self) -> str:
        """Why the server does not serve; empty while it does."""

    def status(self) -> ServerStatus: ...

    def on_swap_status(self) -> None:
        """The status of the swap has changed. Any thread."""

    def on_swapped(self, folder: Path) -> None:
        """The policy of this folder is served now. Thread `swap`."""

    def log_info(self, text: str) -> None: ...

    def log_warning(self, text: str) -> None: ...


def server_status_message(
    core: ServerCore | None,
    statistics: ServerStatistics,
    server_state: ServerState,
    *,
    stamp: Any,
    server: str,
    slot: str,
    swap: SwapStatus = NO_SWAP,
) -> ServerStatus:
    """Return the message of ~/status."""
    status = ServerStatus(
        stamp=stamp,
        server=server,
        slot=slot,
        state=server_state.state,
        text=encodable_text(server_state.text),
        memory_mb=resident_memory_mb(),
        inference_ms_p50=statistics.percentile_ms('inference', 50),
        inference_ms_p99=statistics.percentile_ms('inference', 99),
        queue_wait_ms_p99=statistics.percentile_ms('wait', 99),
        requests=statistics.requests,
        chunks=statistics.chunks,
        superseded=statistics.superseded,
        dropped=[
            DropCount(reason=reason, count=count)
            for reason, count in sorted(statistics.drop_counts().items())
        ],
        swap=int(swap.state),
        swap_text=encodable_text(swap.text),
    )
    if core:
        # read once: a swap may replace it meanwhile
        report, description = core.load_report(), core.description
        status.policy, status.policy_type = description.fingerprint, description.policy_type
        status.device, status.state_class = description.device, int(description.state_class)
        status.warmed_up = True
        status.active_sessions, status.max_sessions = report.active_sessions, report.max_sessions
        status.load = report.load
    return status


def fill_accepted(
    response: OpenSession.Response,
    session: Session,
    description: PolicyDescription,
    observation_topic: str,
) -> None:
    """Fill in the reply to a session that was opened."""
    response.accepted, response.code = True, int(Refusal.OK)
    response.warnings = [encodable_text(warning) for warning in session.warnings]
    response.schema_version = session.schema_version
    response.session_epoch = session.request.session_epoch
    response.session_id = session.session_id
    response.observation_topic = observation_topic
    response.policy_type, response.state_class = (
        description.policy_type,
        int(description.state_class),
    )
    response.warmed_up, response.codec = True, session.request.codec
    if description.action_range:
        value = array('B', action_range.encode(description.action_range))
        response.extensions = [Extension(key=action_range.KEY, value=value)]
    fill_policy(response, description)


def fill_refused(
    response: OpenSession.Response, code: Refusal, reason: str
) -> OpenSession.Response:
    """Fill in the reply to a session that is not opened."""
    response.accepted, response.code = False, int(code)
    response.reason = encodable_text(reason, REASON_LIMIT)
    return response


def fill_load(
    response: OpenSession.Response, core: ServerCore, session_request: OpenSessionRequest | None
) -> OpenSession.Response:
    """Fill in the load, for a client that chooses among several servers."""
    report = core.load_report(session_request)
    response.policy = core.description.fingerprint
    response.load, response.predicted_delay_ms = report.load, report.predicted_delay_ms
    response.active_sessions = report.active_sessions
    response.max_sessions = report.max_sessions
    return response


def fill_server(response: GetStatus.Response, core: ServerCore | None) -> GetStatus.Response:
    """Fill in the schema versions, and the policy if one is served."""
    response.schema_version_min, response.schema_version_max = SCHEMA_VERSION_MIN, SCHEMA_VERSION
    if core:
        fill_policy(response, core.description)
    return response


def fill_policy(response: Any, description: PolicyDescription) -> None:
    """Fill in the policy fields that OpenSession and GetStatus share."""
    response.state_names = list(description.state_names)
    response.action_names = list(description.action_names)
    response.cameras = [
        CameraSpec(name=c.name, height=c.height, width=c.width, channels=c.channels)
        for c in description.cameras
    ]
    response.chunk_size = description.chunk_size
    response.trained_fps = float(description.trained_fps)
    response.supports_rtc = description.supports_rtc
    response.observation_steps = description.observation_steps
    response.observation_stride_steps = description.observation_stride_steps


def policy_summary(description: PolicyDescription) -> str:
    """Return the served policy as one line of the log."""
    kind = description.state_class.name.lower()
    return f'{description.fingerprint} ({description.policy_type}, {kind}) on {description.device}'
