"""What the policy server tells operators and clients about itself. Any thread."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.inference.worker import encodable_text
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.sessions.session_table import Session
from lerobot_serve.wire import action_range
from lerobot_serve.wire.schema import Refusal, SCHEMA_VERSION, SCHEMA_VERSION_MIN
from lerobot_serve.wire.session import SessionRequest
from lerobot_serve_interfaces.msg import CameraSpec, DropCount, Extension, ServerStatus
from lerobot_serve_interfaces.srv import GetStatus, OpenSession

# as in OpenSession.srv
REASON_LIMIT = 2048
STATE_NAMES = {
    ServerStatus.UNCONFIGURED: 'unconfigured',
    ServerStatus.INACTIVE: 'inactive',
    ServerStatus.ACTIVE: 'active',
    ServerStatus.DRAINING: 'draining',
    ServerStatus.FAILED: 'failed',
}


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the server is doing as a whole: a state of ServerStatus, and in words."""

    state: int
    text: str = ''

    @property
    def name(self) -> str:
        return STATE_NAMES[self.state]


def server_status_message(
    serving: ServerCore | None,
    statistics: ServerStatistics,
    standing: ServerState,
    *,
    stamp: Any,
    server: str,
    slot: str,
) -> ServerStatus:
    """Return what the server is doing."""
    status = ServerStatus(
        stamp=stamp,
        server=server,
        slot=slot,
        state=standing.state,
        text=encodable_text(standing.text),
        inference_ms_p50=statistics.percentile_ms('inference', 50),
        inference_ms_p99=statistics.percentile_ms('inference', 99),
        queue_wait_ms_p99=statistics.percentile_ms('wait', 99),
        requests=statistics.requests,
        chunks=statistics.chunks,
        superseded=statistics.superseded,
        drops=[
            DropCount(reason=reason, count=count)
            for reason, count in sorted(statistics.drop_counts().items())
        ],
    )
    if serving:
        report = serving.report()
        status.policy, status.policy_type = serving.served.fingerprint, serving.served.policy_type
        status.device, status.state_class = serving.served.device, int(serving.served.state_class)
        status.warmed_up = True
        status.active_sessions, status.max_sessions = report.active_sessions, report.max_sessions
        status.load = report.load
    return status


def fill_accepted(
    response: OpenSession.Response,
    session: Session,
    served: PolicyDescription,
    observation_topic: str,
) -> None:
    """Fill in the reply to a session that was opened."""
    response.accepted, response.code = True, int(Refusal.OK)
    response.warnings = [encodable_text(warning) for warning in session.warnings]
    response.schema_version = session.schema_version
    response.session_epoch = session.ask.session_epoch
    response.session_id = session.session_id
    response.observation_topic = observation_topic
    response.policy_type, response.state_class = served.policy_type, int(served.state_class)
    response.warmed_up, response.codec = True, session.ask.codec
    if served.action_range:
        value = array('B', action_range.encode(served.action_range))
        response.extensions = [Extension(key=action_range.KEY, value=value)]
    fill_policy(response, served)


def fill_refused(
    response: OpenSession.Response, code: Refusal, reason: str
) -> OpenSession.Response:
    """Fill in the reply to a session that is not opened."""
    response.accepted, response.code, response.reason = False, int(code), reason[:REASON_LIMIT]
    return response


def fill_load(
    response: OpenSession.Response, serving: ServerCore, ask: SessionRequest | None
) -> OpenSession.Response:
    """Tell a client that has a choice how busy this server is."""
    report = serving.report(ask)
    response.policy = serving.served.fingerprint
    response.load, response.predicted_delay_ms = report.load, report.predicted_delay_ms
    response.active_sessions = report.active_sessions
    response.max_sessions = report.max_sessions
    return response


def fill_server(response: GetStatus.Response, serving: ServerCore | None) -> GetStatus.Response:
    """Fill in which contract is spoken, and what is served if anything is."""
    response.schema_version_min, response.schema_version_max = SCHEMA_VERSION_MIN, SCHEMA_VERSION
    if serving:
        fill_policy(response, serving.served)
    return response


def fill_policy(response: Any, served: PolicyDescription) -> None:
    """Fill in what the replies of OpenSession and GetStatus both say of the policy."""
    response.state_names = list(served.state_names)
    response.action_names = list(served.action_names)
    response.cameras = [
        CameraSpec(name=c.name, height=c.height, width=c.width, channels=c.channels)
        for c in served.cameras
    ]
    response.chunk_size = served.chunk_size
    response.trained_fps = float(served.trained_fps)
    response.supports_rtc = served.supports_rtc
    response.observation_steps = served.observation_steps
    response.observation_stride_steps = served.observation_stride_steps
