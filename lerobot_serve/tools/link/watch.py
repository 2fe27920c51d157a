# SPDX-License-Identifier: Apache-2.0
"""
Watch a link through one Zenoh session for each endpoint, and find out why one is not reached.

A session that connects is a client: a peer receives only what the other end itself publishes, a
client all that passes there. Used by the main thread; threads of Zenoh deposit.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
import socket
import time
from types import TracebackType

from lerobot_serve.contract.names import KEY_ROOT
from lerobot_serve.contract.records import GetStatusResponse, ServerStatus
from lerobot_serve.contract.services.messages import read
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.errors import UserError
from lerobot_serve.tools.link.survey import (
    is_instance,
    is_token,
    key_rates,
    KeyCounter,
    LinkSurvey,
    Participant,
    participant,
    ServerAnswers,
)
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.server_name import conflict_text, process_of
from lerobot_serve.zenoh.settings import configuration, ZenohSettings

QUERY_PERIOD_S = 0.05
QUERY_TIMEOUT_S = 1.0
TRY_S = 2.0
QUIC = 'quic/'


@dataclass
class WatchedEndpoint:
    """One session, and what it has seen."""

    name: str
    link: ZenohLink
    counter: KeyCounter
    alive: set[Participant]
    # keys of the tokens of the processes that are servers
    instances: set[str] = field(default_factory=set)


class LinkWatch:
    """A context manager; leaving it closes the sessions."""

    def __init__(
        self, settings: ZenohSettings, client: str, servers: tuple[str, ...] = ()
    ) -> None:
        """
        `client` names this process in the keys of its queries. Access control hides `servers`,
        full names of nodes, that are not named. Raises UserError for wrong settings and for an
        address in use.
        """
        configuration(settings)
        self._settings, self._client, self._servers = settings, client, servers
        self._problems: dict[str, str] = {}
        self._endpoints: list[WatchedEndpoint] = []
        self._answers: dict[str, ServerAnswers] = {}
        self._stack = ExitStack()
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> LinkWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def survey(self, duration_s: float) -> LinkSurvey:
        """Watch for this time, and query each server meanwhile; return what was found."""
        begin_s = time.monotonic()
        if self._endpoints:
            for _ in ticks(begin_s + duration_s):
                self._query_servers()
        counts = [endpoint.counter.counts() for endpoint in self._endpoints]
        watched_s = max(time.monotonic() - begin_s, QUERY_PERIOD_S)
        seen = {participant(key) for each in counts for key in each}
        return LinkSurvey(
            self._settings.site,
            watched_s,
            tuple(endpoint.name for endpoint in self._endpoints),
            dict(self._problems),
            tuple(self._conflicts()),
            frozenset(self._alive()),
            frozenset(each for each in seen if each is not None),
            dict(self._answers),
            key_rates(counts, watched_s),
        )

    def _open(self) -> None:
        for endpoint in self._settings.connect:
            settings = replace(self._settings, connect=(endpoint,), listen=(), observes=True)
            problem = connection_problem(endpoint)
            if not problem:
                with contextlib.suppress(UserError):
                    self._watch(endpoint, ZenohLink(settings))
                    continue
                problem = session_problem(endpoint, bool(settings.keys))
            self._problems[endpoint] = problem
        if self._settings.listen:
            settings = replace(self._settings, connect=())
            self._watch(', '.join(settings.listen), ZenohLink(settings))

    def _watch(self, name: str, link: ZenohLink) -> None:
        self._stack.callback(link.close)
        endpoint = WatchedEndpoint(name, link, KeyCounter(), set())
        site = self._settings.site

        def on_presence(key: str, is_alive: bool) -> None:
            if is_instance(key):
                (endpoint.instances.add if is_alive else endpoint.instances.discard)(key)
            found = participant(key) if is_token(key) else None
            if found:
                (endpoint.alive.add if is_alive else endpoint.alive.discard)(found)

        # of all sites: one that is misspelt is the most frequent mistake
        link.watch_alive(f'{KEY_ROOT}/*/**', on_presence)
        # access control refuses the wildcard, and allows a robot these
        for server in self._servers:
            keys = ServerKeys(site, server)
            link.watch_alive(keys.alive, on_presence)
            link.subscribe(keys.status, self._on_status)
        link.subscribe(f'{KEY_ROOT}/{site}/**', endpoint.counter.count)
        self._endpoints.append(endpoint)

    def _on_status(self, key: str, raw: bytes) -> None:
        """Note what a server publishes: an operator may not call it."""
        found = participant(key)
        assert found
        with contextlib.suppress(ValueError):
            self._note(found, read(ServerStatus, raw)).is_heard = True

    def _note(self, server: Participant, status: ServerStatus) -> ServerAnswers:
        answers = self._answers.setdefault(server.server, ServerAnswers())
        answers.policy, answers.policy_type = status.policy, status.policy_type
        answers.text = status.text
        return answers

    def _alive(self) -> set[Participant]:
        return {each for endpoint in self._endpoints for each in tuple(endpoint.alive)}

    def _conflicts(self) -> list[str]:
        """Return a sentence for each name that several servers have."""
        processes: dict[ServerKeys, set[str]] = {}
        for key in sorted({key for each in self._endpoints for key in tuple(each.instances)}):
            _, site, server, *_ = key.split('/')
            processes.setdefault(ServerKeys(site, server), set()).add(process_of(key))
        return list(filter(None, map(conflict_text, processes, processes.values())))

    def _query_servers(self) -> None:
        queried: set[str] = set()
        for endpoint in self._endpoints:
            for each in tuple(endpoint.alive):
                is_ours = each.is_server and each.site == self._settings.site
                if is_ours and each.server not in queried:
                    queried.add(each.server)
                    self._query(endpoint.link, each)

    def _query(self, link: ZenohLink, server: Participant) -> None:
        answers = self._answers.setdefault(server.server, ServerAnswers())
        keys = ServerKeys(server.site, server.server).client(Role.ROBOT, self._client)
        begin_s = time.monotonic()
        try:
            raw = link.call(keys.service('get_status'), b'', QUERY_TIMEOUT_S)
            answers.round_trips_ms.append((time.monotonic() - begin_s) * 1e3)
            self._note(server, read(GetStatusResponse, raw).status)
        except (ServerUnreachable, ValueError) as error:
            answers.error = str(error)


def ticks(until_s: float) -> Iterator[None]:
    """Yield once every QUERY_PERIOD_S until a time of the monotonic clock."""
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(QUERY_PERIOD_S, left_s))
        yield


def connection_problem(endpoint: str) -> str:
    """
    Return why a TCP connection to an endpoint fails, with the remedy; empty when it succeeds, and
    for QUIC, which has none. Zenoh itself reports each of these as a timeout.
    """
    if endpoint.startswith(QUIC):
        return ''
    host, port = split(endpoint)
    try:
        socket.create_connection((host, port), TRY_S).close()
    except ConnectionRefusedError:
        return (
            f'nothing listens on {endpoint}; start the server or router there with zenoh_listen, '
            'or correct --connect'
        )
    except socket.gaierror:
        return f'{endpoint}: the name {host} is unknown; give an address, or correct --connect'
    except OSError as error:
        return (
            f'{endpoint} does not answer ({error.strerror or error}); check the address, the '
            'network and its firewall'
        )
    return ''


def session_problem(endpoint: str, has_keys: bool) -> str:
    """Return why an endpoint that accepts a connection opens no Zenoh session."""
    if has_keys:
        return (
            f'{endpoint} refuses these keys, or is not a Zenoh endpoint; use certificates of one '
            'CA, and in --connect a name or address that the certificate of the server contains'
        )
    return (
        f'{endpoint} opens no Zenoh session; it is another kind of server, or expects tls/ and '
        '--keys'
    )


def split(endpoint: str) -> tuple[str, int]:
    """Return host and port of a valid endpoint."""
    host, _, port = endpoint.partition('/')[2].rpartition(':')
    return host.strip('[]'), int(port)
