# SPDX-License-Identifier: Apache-2.0
"""
The connection of a client to one server, shared by its sessions, and the plans that need none.

Plans run in any thread or task; callbacks of the link deposit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time

from lerobot_serve.allocator import keep_freed_memory
from lerobot_serve.client.errors import ClientClosed, ServerUnavailable, WrongSettings
from lerobot_serve.client.link import PolicyServerLink, ServerLink
from lerobot_serve.client.results import PolicyInfo
from lerobot_serve.client.session.plans import SessionPlans
from lerobot_serve.client.session.state import SessionSettings
from lerobot_serve.client.settings import checked_timeout, ClientSettings
from lerobot_serve.client.steps import Blocking, Pause, Plan, Waker
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.errors import UserError
from lerobot_serve.links.link import LinkCallbacks, Presence
from lerobot_serve.local.path import LocalPath
from lerobot_serve.zenoh.link import ZenohLink

# of a server that loads its policy
POLL_S = 0.2
EXTRA = "pip install 'lerobot_serve[client-grpc]', or '.[client-grpc]' in a clone"
LinkFactory = Callable[[str, LinkCallbacks], ServerLink]


class Connection:
    """`make_link` builds the link of one client id; `close_all` ends what they share."""

    def __init__(
        self,
        settings: ClientSettings,
        make_link: LinkFactory,
        close_all: Callable[[], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.settings, self._make_link, self._close_all = settings, make_link, close_all
        self._clock = clock
        self.sessions: dict[str, SessionPlans] = {}
        self.is_closed = False
        self._lock, self._ending = threading.Lock(), threading.Lock()
        self._has_ended = False
        # of the plans that wait for the server
        self._wakers: set[Waker] = set()
        # of the session with the name of this client
        self._session: LinkCallbacks | None = None
        self._link = make_link(
            settings.client_id,
            LinkCallbacks(self._on_message, self._on_message, self._on_presence),
        )

    # threads of the link

    def _on_message(self, raw: bytes) -> None:
        session = self._session
        if session:
            session.on_chunk(raw)

    def _on_presence(self, presence: Presence) -> None:
        with self._lock:
            wakers, session = tuple(self._wakers), self._session
        for waker in wakers:
            waker.set()
        if session:
            session.on_presence(presence)

    # plans

    def wait_for_server(self, timeout_s: float, signal: Waker) -> Plan[None]:
        """Return once the server is there. Raises ServerUnavailable."""
        deadline_ns = self._clock() + int(timeout_s * 1e9)
        with self._lock:
            self._wakers.add(signal)
        try:
            while not self._link.is_available():
                left_s = (deadline_ns - self._clock()) / 1e9
                if left_s <= 0:
                    raise ServerUnavailable((yield Blocking(self._link.absence)), '')
                yield Pause(signal, left_s)
                signal.clear()
        finally:
            with self._lock:
                self._wakers.discard(signal)

    def describe(self, timeout_s: float, signal: Waker) -> Plan[PolicyInfo]:
        """Return what is served, once it is loaded. Raises ServerUnavailable."""
        self._check_usable()
        deadline_ns = self._clock() + int(timeout_s * 1e9)
        while True:
            left_s = (deadline_ns - self._clock()) / 1e9
            yield from self.wait_for_server(max(0.0, left_s), signal)
            info = yield Blocking(partial(self._describe, max(POLL_S, left_s)))
            if isinstance(info, PolicyInfo):
                return info
            if left_s <= POLL_S:
                raise ServerUnavailable(
                    f'{self.settings.server} serves no policy yet: {info}',
                    'wait until it is active, or see its log',
                )
            yield Pause(signal, POLL_S)

    def _describe(self, timeout_s: float) -> PolicyInfo | str:
        """Return what is served, or why nothing is."""
        try:
            info = self._link.describe(timeout_s)
        except ServerUnreachable as error:
            return str(error)
        return info if info.action_names else info.server_text

    def new_session(
        self, client_id: str, make_settings: Callable[[str], SessionSettings]
    ) -> SessionPlans:
        """
        Return a session that is not open yet, under a free name unless one is given. Raises
        WrongSettings. Blocks for a moment.
        """
        with self._lock:
            self._check_usable()
            # a service opens many under names of their own; each one keeps images
            self.sessions = {
                name: each for name, each in self.sessions.items() if not each.is_released
            }
            name = self.settings.session_name(self.sessions, client_id)
            if name in self.sessions:
                raise WrongSettings(
                    f'{name} has a session already', 'close it, or give another client_id'
                )
            session = SessionPlans(partial(self._link_of, name), make_settings(name), self._clock)
            self.sessions[name] = session
            return session

    def _link_of(
        self, name: str, callbacks: LinkCallbacks
    ) -> tuple[ServerLink, Callable[[], None]]:
        """Return the link of a client id, and what releases it. With the lock."""
        if name != self.settings.client_id:
            link = self._make_link(name, callbacks)
            return link, link.close
        self._session = callbacks
        return self._link, self._release

    def _release(self) -> None:
        self._session = None

    def close(self) -> Plan[None]:
        """Close all sessions, then the link; another call completes one that was cancelled."""
        self.is_closed = True
        for session in tuple(self.sessions.values()):
            yield from session.close()
        if not self._has_ended:
            yield Blocking(self._end)

    def _end(self) -> None:
        with self._ending:
            if self._has_ended:
                return
            self._has_ended = True
            try:
                self._link.close()
            finally:
                self._close_all()

    def _check_usable(self) -> None:
        if self.is_closed:
            raise ClientClosed('the client is closed', 'connect another one')


class ClientFacts:
    """The base of PolicyClient and AsyncPolicyClient."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def client_id(self) -> str:
        return self._connection.settings.client_id

    def _timeout_s(self, timeout_s: float | None) -> float:
        """Return the timeout of a call. Raises WrongSettings."""
        default_s = self._connection.settings.timeout_s
        return default_s if timeout_s is None else checked_timeout(timeout_s)


def make_connection(settings: ClientSettings, *, callers_receive: bool = False) -> Connection:
    """
    Return a connection, whose server need not be there. Raises WrongSettings. `callers_receive` is
    that of LocalPath.
    """
    make_link: LinkFactory
    if settings.keep_memory:
        keep_freed_memory()
    if settings.gateway:
        try:
            # an installation for Zenoh alone has neither grpcio nor protobuf
            from lerobot_serve.client.gateway_link.channel import GatewayChannel
            from lerobot_serve.client.gateway_link.server_link import GatewayServerLink
        except ImportError as error:
            raise WrongSettings(
                f'{settings.server} needs grpcio and protobuf ({error})', f'install both: {EXTRA}'
            ) from None
        channel = GatewayChannel(settings.gateway)
        make_link, close = partial(GatewayServerLink, channel), channel.close
    else:
        assert settings.zenoh
        try:
            link = ZenohLink(settings.zenoh)
        except UserError as error:
            raise WrongSettings(str(error), '') from None
        make_path = partial(
            LocalPath, lifespan_s=settings.timeout_s, callers_receive=callers_receive
        )
        make_link = partial(
            PolicyServerLink, link, settings.server, make_path if settings.local_path else None
        )
        close = link.close
    try:
        return Connection(settings, make_link, close)
    except BaseException:
        close()
        raise
