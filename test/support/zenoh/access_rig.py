# SPDX-License-Identifier: Apache-2.0
"""
A node with keys and an access file, a witness that may use it, and a subject that tries everything
the table of docs/security.md has a column for: real keys, real sessions over TLS.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
import json
from pathlib import Path
import time

import zenoh

from lerobot_serve.tools.keys import certificates
from lerobot_serve.tools.keys.access import KeyRole
from lerobot_serve.tools.keys.site import AUTHORITY, make_site, opened_site
from lerobot_serve.zenoh.credentials import CERTIFICATE, PRIVATE_KEY
from lerobot_serve.zenoh.keys import ClientKeys, ServerKeys
from lerobot_serve.zenoh.settings import (
    configuration,
    region_name,
    tls_configuration,
    ZenohSettings,
)
from support.paths import REPOSITORY
from support.waiting import wait_until

SITE, EPOCH = 'lab', 7
# in the token of a server
PROCESS = 'host.1.12345678'
PAGE = REPOSITORY / 'docs' / 'security.md'
# refused for this long after everything that is allowed has worked
QUIET_S = 0.6
LIMIT_S = 60.0


def table() -> tuple[list[str], dict[tuple[str, str], list[bool]]]:
    """Return the columns of the table, and its cells by key and node."""
    section = PAGE.read_text().partition('## Who may do what')[2].partition('\n## ')[0]
    lines = [line for line in section.splitlines() if line.startswith('|')]
    head, _, *rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
    cells = {}
    for who, where, *answers in rows:
        assert set(answers) <= {'yes', 'no'} and len(answers) == len(head) - 2, (who, where)
        cells[who, where] = [answer == 'yes' for answer in answers]
    assert len(cells) == len(rows)
    return head[2:], cells


class Keys:
    """The keys of one site in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_site(folder, SITE, 3650)

    def add(self, role: str, name: str, *, direct: bool = False) -> Path:
        hosts = ('localhost', '127.0.0.1') if KeyRole(role).may_listen else ()
        with opened_site(self.folder) as site:
            identity = site.add(KeyRole(role), name, 365, hosts=hosts, direct=direct)
            site.write_access()
        return self.folder / identity.folder

    def revoke(self, name: str) -> None:
        with opened_site(self.folder) as site:
            site.revoke(name)
            site.write_access()

    def expire(self, folder: Path, monkeypatch) -> None:
        """Replace a certificate by one that ended yesterday."""
        at = self.folder / AUTHORITY
        yesterday = datetime.now(timezone.utc) - timedelta(days=1)
        with monkeypatch.context() as patch:
            patch.setattr(certificates, '_expiry', lambda days: yesterday)
            patch.setattr(certificates, 'BACKDATED', timedelta(days=9))
            pair = certificates.make_certificate(
                certificates.load_authority(
                    (at / CERTIFICATE).read_bytes(), (at / PRIVATE_KEY).read_bytes()
                ),
                folder.name,
                1,
                hosts=(),
                may_listen=False,
            )
        (folder / CERTIFICATE).write_bytes(pair.certificate)
        (folder / PRIVATE_KEY).write_bytes(pair.key)


def opened(folder: Path | None, *, connect: int = 0, listen: int = 0) -> zenoh.Session:
    """Return a session with these keys, as our nodes open it."""
    protocol = 'tls' if folder else 'tcp'
    settings = ZenohSettings(
        SITE,
        connect=(f'{protocol}/localhost:{connect}',) if connect else (),
        listen=(f'{protocol}/localhost:{listen}',) if listen else (),
        keys=folder,
    )
    return zenoh.open(zenoh.Config.from_json5(configuration(settings)))


def opened_unchecked(
    folder: Path, connect: int, common_name: str, mode: str = 'peer'
) -> zenoh.Session:
    """Return a session of somebody who does not check the own keys first."""
    return zenoh.open(
        zenoh.Config.from_json5(
            json.dumps(
                {
                    'mode': mode,
                    'region_name': region_name(common_name),
                    'connect': {
                        'endpoints': [f'tls/localhost:{connect}'],
                        'timeout_ms': -1,
                        'exit_on_failure': False,
                    },
                    'scouting': {'multicast': {'enabled': False}},
                    'transport': {'link': {'tls': tls_configuration(folder)}},
                }
            )
        )
    )


def opened_hub(folder: Path, port: int) -> zenoh.Session:
    """Return a Zenoh router with the file of its folder, as zenohd takes it."""
    config = json.loads((folder / 'zenoh.json').read_text())
    config['listen']['endpoints'] = [f'tls/localhost:{port}']
    config['transport']['link']['tls'] = tls_configuration(folder)
    return zenoh.open(zenoh.Config.from_json5(json.dumps(config)))


def is_connected(session: zenoh.Session) -> bool:
    return bool([*session.info.peers_zid(), *session.info.routers_zid()])


class Served:
    """A session that is a server for its clients; records what arrives."""

    def __init__(self, session: zenoh.Session, server: str, payload: str) -> None:
        self.session, self.keys, self.payload = session, ServerKeys(SITE, server), payload
        self.observed: set[tuple[str, str]] = set()
        self.present: set[str] = set()
        at = self.keys.clients
        self.declared = [
            session.declare_subscriber(at.observation, self._on_observation),
            session.declare_queryable(at.service('open_session'), self._on_query),
            session.liveliness().declare_subscriber(at.alive, self._on_token, history=True),
            session.liveliness().declare_token(self.keys.alive),
            session.liveliness().declare_token(self.keys.instance(PROCESS)),
        ]

    def _on_observation(self, sample: zenoh.Sample) -> None:
        self.observed.add((str(sample.key_expr), sample.payload.to_string()))

    def _on_query(self, query: zenoh.Query) -> None:
        with query:
            query.reply(query.key_expr, self.payload)

    def _on_token(self, sample: zenoh.Sample) -> None:
        self.present.add(str(sample.key_expr))

    def publish(self, clients: list[ClientKeys]) -> None:
        self.session.put(self.keys.status, self.payload)
        for client in clients:
            self.session.put(client.reply(EPOCH), self.payload)
            self.session.put(client.no_session, self.payload)


class Client:
    """A session that tries what a client of one server does, as itself and as another."""

    def __init__(
        self, session: zenoh.Session, own: ClientKeys, other: ClientKeys, at: ServerKeys
    ) -> None:
        self.session, self.own, self.other, self.at = session, own, other, at
        self.received: set[tuple[str, str]] = set()
        self.present: set[str] = set()
        self.replied: set[tuple[str, str]] = set()
        live = session.liveliness()
        everything = f'@lerobot/{SITE}/**'
        self.declared = [
            *(
                session.declare_subscriber(key, self._on_sample)
                for key in (
                    *(own.replies(), own.no_session, at.status),
                    *(other.replies(), other.no_session, other.observation),
                    *(everything, '@lerobot/**', '**'),
                )
            ),
            live.declare_subscriber(at.alive, self._on_token, history=True),
            live.declare_subscriber(at.instance('*'), self._on_token, history=True),
            live.declare_token(own.alive),
        ]

    def _on_sample(self, sample: zenoh.Sample) -> None:
        self.received.add((str(sample.key_expr), sample.payload.to_string()))

    def _on_token(self, sample: zenoh.Sample) -> None:
        self.present.add(str(sample.key_expr))

    def attempt(self, payload: str) -> None:
        for keys in (self.own, self.other):
            self.session.put(keys.observation, payload)
            self.query(keys)

    def query(self, keys: ClientKeys) -> None:
        key = keys.service('open_session')

        def on_reply(reply: zenoh.Reply) -> None:
            if reply.ok is not None:
                self.replied.add((key, reply.ok.payload.to_string()))

        self.session.get(key, on_reply, timeout=0.4, target=zenoh.QueryTarget.ALL)

    def reads(self, at: ServerKeys) -> bool:
        tokens = {at.alive, at.instance(PROCESS)}
        return any(key == at.status for key, _ in self.received) and tokens <= self.present


class Impostor:
    """What a session does as a server: under its own name, or under that of another."""

    def __init__(self, session: zenoh.Session, keys: ServerKeys, payload: str) -> None:
        self.session, self.keys, self.payload = session, keys, payload
        self.declared = [
            session.declare_queryable(keys.clients.service('open_session'), self._on_query),
            session.liveliness().declare_token(keys.alive),
            session.liveliness().declare_token(keys.instance(PROCESS)),
        ]

    def _on_query(self, query: zenoh.Query) -> None:
        with query:
            query.reply(query.key_expr, self.payload)

    def publish(self, clients: list[ClientKeys]) -> None:
        self.session.put(self.keys.status, self.payload)
        for client in clients:
            self.session.put(client.reply(EPOCH), self.payload)


def repeat(step: Callable[[], None], until: Callable[[], bool], what: str) -> None:
    """Repeat until everything that is allowed has worked, and for QUIET_S more."""

    def holds() -> bool:
        step()
        time.sleep(0.03)
        return until()

    wait_until(holds, what, LIMIT_S)
    end = time.monotonic() + QUIET_S
    while time.monotonic() < end:
        holds()
