# SPDX-License-Identifier: Apache-2.0
"""
Check a session request against the policy: names, cameras, rates, codec, task. Pure functions.

Compute how many clients this server admits, from measurements. Pure functions.

Two bounds: the server is busy at most MAX_UTILIZATION of the time at the clients' request rate,
and if all clients send at once, the last reply arrives before half of its chunk is executed.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

from lerobot_serve.contract.limits import ID_LIMIT, negotiate_version, SchemaVersionRefused
from lerobot_serve.contract.names import (
    is_printable,
    is_reply_key,
    is_reply_topic,
    REPLY_TOPIC_FORMS,
)
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Codec, Refusal
from lerobot_serve.contract.services.session import aspect_ratio_warning, SessionRefused
from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.server.parameters import ServerParameters

SHOWN_NAMES = 32


def check_version(request: OpenSessionRequest) -> int:
    try:
        return negotiate_version(request.schema_version)
    except SchemaVersionRefused as error:
        code = Refusal.SCHEMA_TOO_NEW if error.is_client_newer else Refusal.SCHEMA_TOO_OLD
        raise SessionRefused(code, str(error)) from None


def check_names(request: OpenSessionRequest) -> None:
    if not request.client_id.strip():
        raise SessionRefused(
            Refusal.BAD_NAME, 'client_id is empty; give each robot a name of its own'
        )
    # log lines contain both
    for name, text in (('client_id', request.client_id), ('robot_type', request.robot_type)):
        if not is_printable(text, ID_LIMIT):
            raise SessionRefused(
                Refusal.BAD_NAME,
                f'{name} must be printable text of at most {ID_LIMIT} bytes, got {text[:80]!r}',
            )
    if not (is_reply_topic(request.reply_topic) or is_reply_key(request.reply_topic)):
        raise SessionRefused(
            Refusal.BAD_NAME,
            f'reply_topic must be the full name of a ROS topic, {REPLY_TOPIC_FORMS}; got '
            f'{request.reply_topic[:80]!r}',
        )


def check_session_request(
    request: OpenSessionRequest, description: PolicyDescription, rules: ServerParameters
) -> tuple[str, ...]:
    """Return the warnings. Raises SessionRefused."""
    check_equal_names(
        Refusal.ACTION_NAMES, 'action_names', request.action_names, description.action_names
    )
    check_equal_names(
        Refusal.STATE_NAMES, 'state_names', request.state_names, description.state_names
    )
    if not is_required_policy(request, description):
        raise SessionRefused(
            Refusal.WRONG_POLICY,
            f'policy mismatch: requested {request.policy!r}, served is '
            f'{description.fingerprint!r}; request that one, leave policy empty, or use another '
            'server',
        )
    if request.codec not in tuple(Codec):
        raise SessionRefused(
            Refusal.CODEC,
            f'codec must be 1 (JPEG) or 2 (raw), got {request.codec}; set codec to jpeg or raw',
        )
    if rules.pin_task and request.task not in ('', rules.default_task):
        raise SessionRefused(
            Refusal.TASK_PINNED,
            f'requested task {request.task!r}, only {rules.default_task!r} is served; request '
            'that task or leave it empty',
        )
    if not (math.isfinite(request.reply_deadline_s) and request.reply_deadline_s >= 0):
        raise SessionRefused(
            Refusal.BAD_REQUEST,
            f'reply_deadline_s must be 0 (no bound) or above, got {request.reply_deadline_s:g}',
        )
    return (
        *description.notes,
        *check_cameras(request, description),
        *check_fps(request, description, rules),
        *check_chunking(request, description),
    )


def is_required_policy(request: OpenSessionRequest, description: PolicyDescription) -> bool:
    """Return whether this is the policy that the request requires, by fingerprint or by id."""
    names = ('', description.fingerprint, description.fingerprint.split('@')[0])
    return request.policy in names


def check_chunking(request: OpenSessionRequest, description: PolicyDescription) -> list[str]:
    if request.wants_rtc and not description.supports_rtc:
        return [
            f'{description.policy_type} does not support real-time chunking: chunks do not '
            'continue the prefix; append them'
        ]
    if request.wants_rtc and request.rtc_execution_horizon > description.chunk_size:
        return [
            f'rtc_execution_horizon {request.rtc_execution_horizon} is longer than a chunk; '
            f'{description.chunk_size} is used'
        ]
    return []


def check_equal_names(
    code: Refusal, what: str, requested: tuple[str, ...], served: tuple[str, ...]
) -> None:
    """Raise SessionRefused unless names and order are equal: they map values to motors."""
    if requested == served:
        return
    same_set = sorted(requested) == sorted(served)
    hint = 'the order differs' if same_set else 'the names differ'
    raise SessionRefused(
        code,
        f'{what}: {hint}; requested {shortened(requested)}, served {shortened(served)}; correct '
        'the robot file, or serve a policy that was trained for this robot',
    )


def shortened(names: tuple[str, ...]) -> str:
    """Return at most SHOWN_NAMES names for an error text."""
    more = f' and {len(names) - SHOWN_NAMES} more' if len(names) > SHOWN_NAMES else ''
    return f'{list(names[:SHOWN_NAMES])}{more}'


def check_cameras(request: OpenSessionRequest, description: PolicyDescription) -> list[str]:
    has = {camera.name: camera for camera in request.cameras}
    missing = [camera.name for camera in description.cameras if camera.name not in has]
    if missing:
        raise SessionRefused(
            Refusal.CAMERAS,
            f'the policy needs cameras {missing}, the robot has '
            f'{shortened(tuple(sorted(has)))}; use these names in the robot file',
        )
    warnings = []
    for camera in description.cameras:
        given = has[camera.name]
        if given.channels != camera.channels:
            raise SessionRefused(
                Refusal.CAMERAS,
                f'{camera.name} must have {camera.channels} channels, the robot has '
                f'{given.channels}; give it a camera of that kind',
            )
        sizes = (given.height, given.width), (camera.height, camera.width)
        if text := aspect_ratio_warning(camera.name, *sizes):
            warnings.append(text)
    wanted = {camera.name for camera in description.cameras}
    extra = sorted(set(has) - wanted)
    if extra:
        warnings.append(
            f'cameras {shortened(tuple(extra))} are not used by the policy; leave them out to '
            'save bandwidth'
        )
    return warnings


def check_fps(
    request: OpenSessionRequest, description: PolicyDescription, rules: ServerParameters
) -> list[str]:
    if not (math.isfinite(request.fps) and request.fps > 0):
        raise SessionRefused(
            Refusal.FPS,
            f'fps of the robot must be above 0, got {request.fps:g}; the policy was trained at '
            f'{description.trained_fps:g} Hz',
        )
    if not description.trained_fps > 0:
        return ['the rate the policy was trained at is unknown; compare it with fps']
    # the message holds 32-bit floats
    if abs(request.fps - description.trained_fps) < 1e-3:
        return []
    text = (
        f'the robot runs at {request.fps:g} Hz, the policy was trained at '
        f'{description.trained_fps:g} Hz'
    )
    if rules.require_trained_fps:
        raise SessionRefused(Refusal.FPS, f'{text}; change fps of the robot')
    return [f'{text}: motion runs at {request.fps / description.trained_fps:.2g}x trained speed']


MAX_UTILIZATION = 0.8
MAX_LOAD = 0.99


@dataclass(frozen=True, slots=True)
class Demand:
    """The load of one client."""

    rate_hz: float
    chunk_s: float
    network_s: float


def max_robots(service_s: float, demand: Demand, batch: float = 1.0, single_s: float = 0.0) -> int:
    """
    Return how many clients are admitted; at least 1. `service_s` was measured per request in
    batches of `batch`; `single_s` is that of a request alone, 0 where it is not known.
    """
    if service_s <= 0:
        raise ValueError(f'service_s must be above 0, got {service_s}')
    by_load = MAX_UTILIZATION / (demand.rate_hz * service_s)
    by_delay = _served_at_once(demand.chunk_s / 2 - demand.network_s, service_s, batch, single_s)
    return max(1, math.floor(min(by_load, by_delay)))


def _served_at_once(budget_s: float, service_s: float, batch: float, single_s: float) -> float:
    """
    Return how many clients that send at once are served within a time. The last batch is seldom
    full, and takes almost as long as a full one.
    """
    batch_s = batch * service_s
    single_s = min(max(single_s, service_s), batch_s)
    if batch <= 1 or single_s == service_s:
        return budget_s / service_s
    batches, left_s = divmod(budget_s, batch_s)
    if left_s < single_s:
        return batches * batch
    return batches * batch + 1 + (left_s - single_s) * (batch - 1) / (batch_s - single_s)


def expected_rate_hz(chunk_s: float) -> float:
    """Return the assumed request rate of a client without measurements: two in a chunk."""
    return 2 / chunk_s


def predicted_delay_s(service_s: float, load: float, waiting: int) -> float:
    """
    Return the expected delay of a request that arrives now: its own service time, plus the queued
    requests or, if more, the mean queue at this load.
    """
    busy = min(max(load, 0.0), MAX_LOAD)
    queued = busy / (2 * (1 - busy))
    return service_s * (1 + max(queued, waiting))
