"""
Who may ask this server, and under which contract.

Everything about a robot and the policy that could not match is found here, before anything moves.
Owned by the executor thread; the intake thread calls `find` and `heard`, and the worker only
reads the frozen Session objects it is handed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
import math
import threading

from lerobot_serve.policies.base import Description
from lerobot_serve.wire.names import is_topic
from lerobot_serve.wire.schema import agree, Codec, ID_LIMIT, Refusal, SchemaRefused
from lerobot_serve.wire.session import Refused, SessionAsk


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator allows, beyond what the policy needs."""

    max_sessions: int
    default_task: str
    pin_task: bool
    strict_fps: bool
    grace_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class Session:
    """One open session."""

    ask: SessionAsk
    session_id: str
    schema_version: int
    task: str
    warnings: tuple[str, ...]
    task_pinned: bool = False


class SessionTable:
    """The open sessions, at most one for each client_id."""

    def __init__(self, served: Description, rules: Rules) -> None:
        self._served = served
        self.rules = rules
        self._sessions: dict[str, Session] = {}
        self._heard_ns: dict[str, int] = {}
        # `find` and `heard` are the intake thread's, everything else is the executor's
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def open(self, ask: SessionAsk, now_ns: int) -> Session:
        """
        Return the session, which takes the place of the client's older one. Raises Refused.

        The same ask twice is answered twice with the same session.
        """
        version = check_version(ask)
        check_names(ask)
        known = self._sessions.get(ask.client_id)
        if known and known.ask == ask:
            self._heard_ns[ask.client_id] = now_ns
            return known
        if known:
            self._check_name_is_free(known, ask, now_ns)
        elif len(self._sessions) >= self.rules.max_sessions:
            raise Refused(
                Refusal.CAPACITY,
                f'{len(self._sessions)} of {self.rules.max_sessions} sessions are open; try '
                'another server, or raise max_sessions',
            )
        warnings = check_contract(ask, self._served, self.rules)
        session = Session(
            ask,
            name_session(ask),
            version,
            ask.task or self.rules.default_task,
            warnings,
            self.rules.pin_task,
        )
        self._sessions[ask.client_id] = session
        self._heard_ns[ask.client_id] = now_ns
        return session

    def current(self, client_id: str) -> Session | None:
        """Return the open session of this client, whatever its epoch."""
        return self._sessions.get(client_id)

    def find(self, client_id: str, session_epoch: int) -> Session | None:
        """Return the open session of this client and epoch."""
        session = self._sessions.get(client_id)
        return session if session and session.ask.session_epoch == session_epoch else None

    def heard(self, client_id: str, now_ns: int) -> None:
        """Note that the client is alive."""
        with self._lock:
            if client_id in self._sessions:
                self._heard_ns[client_id] = now_ns

    def close(self, client_id: str, session_epoch: int) -> Session | None:
        """Return the session that was ended, None when there was no such session."""
        with self._lock:
            if not self.find(client_id, session_epoch):
                return None
            del self._heard_ns[client_id]
            return self._sessions.pop(client_id)

    def expire(self, now_ns: int) -> list[Session]:
        """Close and return the sessions that were silent for too long."""
        silent = [
            session
            for name, session in self._sessions.items()
            if now_ns - self._heard_ns[name] > self.rules.idle_ns
        ]
        for session in silent:
            self.close(session.ask.client_id, session.ask.session_epoch)
        return silent

    def change_rules(self, **changes: int) -> None:
        """Change what may change live; sessions that are open stay open."""
        self.rules = replace(self.rules, **changes)

    def _check_name_is_free(self, known: Session, ask: SessionAsk, now_ns: int) -> None:
        silent_ns = now_ns - self._heard_ns[ask.client_id]
        if known.ask.instance != ask.instance and silent_ns < self.rules.grace_ns:
            raise Refused(
                Refusal.NAME_IN_USE,
                f'another robot called {ask.client_id!r} was heard {silent_ns / 1e9:.1f} s ago; '
                'give each robot its own client_id, or try again after '
                f'{self.rules.grace_ns / 1e9:g} s',
            )


def name_session(ask: SessionAsk) -> str:
    epoch = f'#{ask.session_epoch:08x}'
    name = ask.client_id.encode()[: ID_LIMIT - len(epoch)].decode(errors='ignore')
    return name + epoch


def check_version(ask: SessionAsk) -> int:
    try:
        return agree(ask.schema_version)
    except SchemaRefused as error:
        code = Refusal.SCHEMA_TOO_NEW if error.too_new else Refusal.SCHEMA_TOO_OLD
        raise Refused(code, str(error)) from None


def check_names(ask: SessionAsk) -> None:
    if not ask.client_id.strip():
        raise Refused(Refusal.BAD_NAME, 'client_id is empty; give each robot a name of its own')
    if not ask.client_id.isprintable():
        raise Refused(
            Refusal.BAD_NAME, f'client_id must be printable text, got {ask.client_id[:80]!r}'
        )
    if not is_topic(ask.reply_topic):
        raise Refused(
            Refusal.BAD_NAME,
            f'reply_topic must be the full name of a ROS topic, got {ask.reply_topic[:80]!r}',
        )


def check_contract(ask: SessionAsk, served: Description, rules: Rules) -> tuple[str, ...]:
    """Return what is worth a warning. Raises Refused."""
    check_same_names(Refusal.ACTION_NAMES, 'action_names', ask.action_names, served.action_names)
    check_same_names(Refusal.STATE_NAMES, 'state_names', ask.state_names, served.state_names)
    if ask.policy and ask.policy not in (served.fingerprint, served.fingerprint.split('@')[0]):
        raise Refused(
            Refusal.WRONG_POLICY,
            f'asked for policy {ask.policy!r}, served is {served.fingerprint!r}',
        )
    if ask.codec not in tuple(Codec):
        raise Refused(Refusal.CODEC, f'codec must be 1 (JPEG) or 2 (raw), got {ask.codec}')
    if rules.pin_task and ask.task not in ('', rules.default_task):
        raise Refused(
            Refusal.TASK_PINNED,
            f'asked for task {ask.task!r}, only {rules.default_task!r} is served',
        )
    warnings = [*check_cameras(ask, served), *check_fps(ask, served, rules)]
    if ask.wants_rtc and not served.supports_rtc:
        warnings.append(f'{served.policy_type} has no real-time chunking; chunks are not guided')
    return tuple(warnings)


def check_same_names(code: Refusal, what: str, asked: tuple, served: tuple) -> None:
    """Names and their order decide which number goes to which motor: they must be equal."""
    if asked == served:
        return
    same_set = sorted(asked) == sorted(served)
    hint = 'the order differs' if same_set else 'the names differ'
    raise Refused(code, f'{what}: {hint}; asked {list(asked)}, served {list(served)}')


def check_cameras(ask: SessionAsk, served: Description) -> list[str]:
    has = {camera.name: camera for camera in ask.cameras}
    missing = [camera.name for camera in served.cameras if camera.name not in has]
    if missing:
        raise Refused(
            Refusal.CAMERAS, f'the policy needs cameras {missing}, the robot has {sorted(has)}'
        )
    warnings = []
    for camera in served.cameras:
        given = has[camera.name]
        if given.channels != camera.channels:
            raise Refused(
                Refusal.CAMERAS,
                f'{camera.name} must have {camera.channels} channels, the robot has '
                f'{given.channels}',
            )
        if (
            given.height
            and camera.height
            and (given.height * camera.width != given.width * camera.height)
        ):
            warnings.append(
                f'{camera.name} is {given.height}x{given.width} on the robot and was '
                f'{camera.height}x{camera.width} in training: the picture will be stretched'
            )
    wanted = {camera.name for camera in served.cameras}
    extra = sorted(set(has) - wanted)
    if extra:
        warnings.append(
            f'cameras {extra} are not used by the policy; leave them out to save bandwidth'
        )
    return warnings


def check_fps(ask: SessionAsk, served: Description, rules: Rules) -> list[str]:
    if not (math.isfinite(ask.fps) and ask.fps > 0):
        raise Refused(
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
        raise Refused(Refusal.FPS, f'{text}; change fps of the robot')
    return [f'{text}: it will move {ask.fps / served.trained_fps:.2g} times as fast']
