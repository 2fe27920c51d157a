"""What the policy server tells operators and clients about itself. Any thread."""

from __future__ import annotations

from typing import Any

from lerobot_serve.policies.base import Description
from lerobot_serve.server.sessions import SessionTable
from lerobot_serve.server.statistics import Statistics
from lerobot_serve_interfaces.msg import CameraSpec, DropCount, ServerStatus


def server_status(
    served: Description,
    statistics: Statistics,
    sessions: SessionTable,
    *,
    stamp: Any,
    server: str,
    slot: str,
    now_ns: int,
) -> ServerStatus:
    """Return what the server is doing."""
    drops = sorted(statistics.drop_counts().items())
    return ServerStatus(
        stamp=stamp,
        server=server,
        slot=slot,
        policy=served.fingerprint,
        policy_type=served.policy_type,
        device=served.device,
        state=ServerStatus.ACTIVE,
        state_class=int(served.state_class),
        warmed_up=True,
        active_sessions=len(sessions),
        max_sessions=sessions.rules.max_sessions,
        load=statistics.load(now_ns),
        inference_ms_p50=statistics.percentile_ms('inference', 50),
        inference_ms_p99=statistics.percentile_ms('inference', 99),
        queue_wait_ms_p99=statistics.percentile_ms('wait', 99),
        requests=statistics.requests,
        chunks=statistics.chunks,
        superseded=statistics.superseded,
        drops=[DropCount(reason=reason, count=count) for reason, count in drops],
    )


def describe_policy(response: Any, served: Description) -> None:
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
