"""
The contract between one robot and one policy: everything about the two that could not match is
found here, before anything moves. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.wire.names import is_printable, is_reply_topic, REPLY_TOPIC_FORMS
from lerobot_serve.wire.schema import (
    Codec,
    ID_LIMIT,
    negotiate_version,
    Refusal,
    SchemaVersionRefused,
)
from lerobot_serve.wire.session import aspect_ratio_warning, SessionRefused, SessionRequest

SHOWN_NAMES = 32


@dataclass(frozen=True, slots=True)
class SessionRules:
    """What the operator allows, beyond what the policy needs."""

    max_sessions: int
    default_task: str
    pin_task: bool
    strict_fps: bool
    grace_ns: int
    idle_ns: int
    # sessions of one client process, and one-shot requests that wait
    process_sessions: int
    one_shots: int


def check_version(ask: SessionRequest) -> int:
    try:
        return negotiate_version(ask.schema_version)
    except SchemaVersionRefused as error:
        code = Refusal.SCHEMA_TOO_NEW if error.is_client_newer else Refusal.SCHEMA_TOO_OLD
        raise SessionRefused(code, str(error)) from None


def check_names(ask: SessionRequest) -> None:
    if not ask.client_id.strip():
        raise SessionRefused(
            Refusal.BAD_NAME, 'client_id is empty; give each robot a name of its own'
        )
    # both stand in log lines
    for name, text in (('client_id', ask.client_id), ('robot_type', ask.robot_type)):
        if not is_printable(text, ID_LIMIT):
            raise SessionRefused(
                Refusal.BAD_NAME,
                f'{name} must be printable text of at most {ID_LIMIT} bytes, got {text[:80]!r}',
            )
    if not is_reply_topic(ask.reply_topic):
        raise SessionRefused(
            Refusal.BAD_NAME,
            f'reply_topic must be the full name of a ROS topic, {REPLY_TOPIC_FORMS}; got '
            f'{ask.reply_topic[:80]!r}',
        )


def check_session_request(
    ask: SessionRequest, served: PolicyDescription, rules: SessionRules
) -> tuple[str, ...]:
    """Return what is worth a warning. Raises Refused."""
    check_equal_names(Refusal.ACTION_NAMES, 'action_names', ask.action_names, served.action_names)
    check_equal_names(Refusal.STATE_NAMES, 'state_names', ask.state_names, served.state_names)
    if ask.policy and ask.policy not in (served.fingerprint, served.fingerprint.split('@')[0]):
        raise SessionRefused(
            Refusal.WRONG_POLICY,
            f'asked for policy {ask.policy!r}, served is {served.fingerprint!r}; insist on that '
            'one or on none, or ask the server that has yours',
        )
    if ask.codec not in tuple(Codec):
        raise SessionRefused(
            Refusal.CODEC,
            f'codec must be 1 (JPEG) or 2 (raw), got {ask.codec}; set codec to jpeg or raw',
        )
    if rules.pin_task and ask.task not in ('', rules.default_task):
        raise SessionRefused(
            Refusal.TASK_PINNED,
            f'asked for task {ask.task!r}, only {rules.default_task!r} is served; ask for that or '
            'for none',
        )
    if not (math.isfinite(ask.answer_within_s) and ask.answer_within_s >= 0):
        raise SessionRefused(
            Refusal.BAD_REQUEST,
            f'answer_within_s must be 0 (no bound) or above, got {ask.answer_within_s:g}',
        )
    return (
        *served.notes,
        *check_cameras(ask, served),
        *check_fps(ask, served, rules),
        *check_chunking(ask, served),
    )


def check_chunking(ask: SessionRequest, served: PolicyDescription) -> list[str]:
    if ask.wants_rtc and not served.supports_rtc:
        return [
            f'{served.policy_type} has no real-time chunking: chunks are not guided by what is '
            'left to play, append them'
        ]
    if ask.wants_rtc and ask.rtc_execution_horizon > served.chunk_size:
        return [
            f'rtc_execution_horizon {ask.rtc_execution_horizon} is longer than a chunk; '
            f'{served.chunk_size} is used'
        ]
    return []


def check_equal_names(code: Refusal, what: str, asked: tuple, served: tuple) -> None:
    """Names and their order decide which number goes to which motor: they must be equal."""
    if asked == served:
        return
    same_set = sorted(asked) == sorted(served)
    hint = 'the order differs' if same_set else 'the names differ'
    raise SessionRefused(
        code,
        f'{what}: {hint}; asked {shortened(asked)}, served {shortened(served)}; correct the robot file, '
        'or serve a policy that was trained for this robot',
    )


def shortened(names: tuple[str, ...]) -> str:
    """Return names as a refusal lists them, which a peer cannot make as long as it likes."""
    more = f' and {len(names) - SHOWN_NAMES} more' if len(names) > SHOWN_NAMES else ''
    return f'{list(names[:SHOWN_NAMES])}{more}'


def check_cameras(ask: SessionRequest, served: PolicyDescription) -> list[str]:
    has = {camera.name: camera for camera in ask.cameras}
    missing = [camera.name for camera in served.cameras if camera.name not in has]
    if missing:
        raise SessionRefused(
            Refusal.CAMERAS,
            f'the policy needs cameras {missing}, the robot has {shortened(tuple(sorted(has)))}; name '
            'them so in the robot file',
        )
    warnings = []
    for camera in served.cameras:
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
    wanted = {camera.name for camera in served.cameras}
    extra = sorted(set(has) - wanted)
    if extra:
        warnings.append(
            f'cameras {shortened(tuple(extra))} are not used by the policy; leave them out to save '
            'bandwidth'
        )
    return warnings


def check_fps(ask: SessionRequest, served: PolicyDescription, rules: SessionRules) -> list[str]:
    if not (math.isfinite(ask.fps) and ask.fps > 0):
        raise SessionRefused(
            Refusal.FPS,
            f'fps of the robot must be above 0, got {ask.fps:g}; the policy was trained at '
            f'{served.trained_fps:g} Hz',
        )
    if not served.trained_fps > 0:
        return ['the policy does not say at which rate it was trained; compare it with fps']
    # the message holds 32-bit floats
    if abs(ask.fps - served.trained_fps) < 1e-3:
        return []
    text = f'the robot runs at {ask.fps:g} Hz, the policy was trained at {served.trained_fps:g} Hz'
    if rules.strict_fps:
        raise SessionRefused(Refusal.FPS, f'{text}; change fps of the robot')
    return [f'{text}: it will move {ask.fps / served.trained_fps:.2g} times as fast']
