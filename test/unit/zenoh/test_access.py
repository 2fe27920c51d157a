# SPDX-License-Identifier: Apache-2.0
"""The table of docs/security.md: each cell is tried with real keys over real TLS sessions."""

from __future__ import annotations

from pathlib import Path
import subprocess
import sys

import pytest
from support.network.ports import free_port
from support.paths import module_environment
from support.waiting import wait_until
from support.zenoh.access_rig import (
    Client,
    Impostor,
    is_connected,
    Keys,
    opened,
    opened_hub,
    opened_unchecked,
    PROCESS,
    repeat,
    Served,
    SITE,
    table,
)
import zenoh

from lerobot_serve.tools.bags.zenoh_recording import selectors
from lerobot_serve.zenoh.keys import ClientKeys, Role, ServerKeys

COLUMNS, CELLS = table()
OVER_ROS = ('any, without SROS 2', 'ROS 2')
TRIED = [pair for pair in CELLS if pair != OVER_ROS]
NODE, SUBJECT, WITNESS = '/node', '/subject', '/witness'
# no link opens
NEVER_CONNECTED = ('expired robot', 'robot of another site', 'no key')
pytestmark = pytest.mark.long


def client_keys(at: ServerKeys, role: str, name: str) -> ClientKeys:
    is_router = role == 'router'
    return at.client(Role.ROUTER if is_router else Role.ROBOT, name if is_router else name[1:])


class Trial:
    """One row: the sessions, and what the subject could do."""

    def __init__(self, tmp_path: Path, monkeypatch, who: str, where: str) -> None:
        self.keys, self.sessions = Keys(tmp_path / 'keys'), []
        self.role = role_of(who)
        kind = where.removeprefix('other ').partition(' ')[0]
        direct = where.endswith('`--direct`')
        witness_role = 'robot' if kind != 'server' or direct else 'router'
        hosted = self.keys.add(kind, NODE if kind != 'hub' else 'node', direct=direct)
        backend = self.keys.add('server', '/backend') if kind == 'hub' else None
        witness = self.keys.add(witness_role, name_of(witness_role, WITNESS))
        subject = self._subject_folder(tmp_path, monkeypatch, who)

        port = free_port()
        if backend:
            self.keep(opened_hub(hosted, port))
            served = self.keep(opened(backend, connect=port))
            self.served = Served(served, '/backend', 'node')
        else:
            self.served = Served(self.keep(opened(hosted, listen=port)), NODE, 'node')
        at = self.served.keys
        witness_keys = client_keys(at, witness_role, WITNESS)
        own = client_keys(at, self.role, SUBJECT)
        self.witness = Client(
            self.keep(opened(witness, connect=port)), witness_keys, witness_keys, at
        )
        # a hub links no peer of an unknown region: a revoked robot takes that of another
        is_revoked = who == 'revoked robot'
        region = 'robot.witness' if is_revoked else f'{self.role}.{SUBJECT[1:]}'
        # as `lerobot-serve record` connects: a peer passes on nothing to other peers
        mode = 'client' if self.role == 'recorder' else 'peer'
        # one as client, one as server: a session hears itself
        self.session, as_server = (
            self.keep(
                opened_unchecked(subject, port, region, mode) if subject else tcp_client(port)
            )
            for _ in range(2)
        )
        if who not in NEVER_CONNECTED:
            wait_until(lambda: is_connected(self.session), 'a link of the subject')
            wait_until(lambda: is_connected(as_server), 'a second link of the subject')
        self.who, self.at = who, at
        self.absent = client_keys(at, witness_role, '/absent')
        self.subject = Client(self.session, own, witness_keys, at)
        self.token = self.session.liveliness().declare_token(self.absent.alive)
        # as a server of its own name, and as the node
        self.served_keys = ServerKeys(SITE, SUBJECT)
        self.own_impostor = Impostor(as_server, self.served_keys, 'subject')
        self.other_impostor = Impostor(as_server, at, 'subject')
        self.observers = self._observers(kind, witness_role)

    def _subject_folder(self, tmp_path: Path, monkeypatch, who: str) -> Path | None:
        name = name_of(self.role, SUBJECT)
        if who == 'no key':
            return None
        if who == 'robot of another site':
            return Keys(tmp_path / 'foreign').add(self.role, name)
        folder = self.keys.add(self.role, name)
        if who == 'revoked robot':
            kept = folder.rename(tmp_path / 'stolen')
            self.keys.revoke(name)
            return kept
        if who == 'expired robot':
            self.keys.expire(folder, monkeypatch)
        return folder

    def _observers(self, kind: str, witness_role: str) -> list[Client]:
        """Return clients of the server that the subject plays."""
        keys = client_keys(self.served_keys, witness_role, WITNESS)
        found = [Client(self.witness.session, keys, keys, self.served_keys)]
        if kind == 'router':
            keys = self.served_keys.client(Role.ROUTER, NODE)
            found.append(Client(self.served.session, keys, keys, self.served_keys))
        return found

    def keep(self, session: zenoh.Session) -> zenoh.Session:
        self.sessions.append(session)
        return session

    def step(self) -> None:
        clients = [self.subject.own, self.witness.own]
        self.served.publish(clients)
        self.witness.attempt('witness')
        self.subject.attempt('subject')
        self.own_impostor.publish([each.own for each in self.observers])
        self.other_impostor.publish([self.witness.own])
        for observer in self.observers:
            observer.query(observer.own)

    def facts(self) -> dict[str, set[bool]]:
        """Return for each column whether each part of it worked."""
        node, subject, at = self.served, self.subject, self.at
        own, other = subject.own, self.witness.own
        call = own.service('open_session'), 'node'
        read = {key for key, payload in subject.received if payload == 'node'}
        seen_as_server = [
            (
                observer.reads(self.served_keys)
                and (observer.own.reply(7), 'subject') in observer.received
                and (observer.own.service('open_session'), 'subject') in observer.replied
            )
            for observer in self.observers
        ]
        return {
            'requests': {
                (own.observation, 'subject') in node.observed,
                call in subject.replied,
                own.alive in node.present,
            },
            'as another': {
                (other.observation, 'subject') in node.observed,
                (other.service('open_session'), 'node') in subject.replied,
                self.absent.alive in node.present,
            },
            'replies': {own.reply(7) in read, own.no_session in read},
            'of another': {
                bool(read - {own.reply(7), own.no_session, at.status}),
                any(payload == 'witness' for _, payload in subject.received),
            },
            'status': {
                at.status in read,
                at.alive in subject.present,
                at.instance(PROCESS) in subject.present,
            },
            'serves': {any(seen_as_server)},
            'serves as another': {
                any(
                    key.startswith(f'{at.prefix}/') and payload == 'subject'
                    for key, payload in self.witness.received
                ),
                any(payload == 'subject' for _, payload in self.witness.replied),
            },
        }

    def witness_works(self) -> bool:
        own = self.witness.own
        return (
            (own.observation, 'witness') in self.served.observed
            and (own.service('open_session'), 'node') in self.witness.replied
            and (own.reply(7), 'node') in self.witness.received
            and self.witness.reads(self.at)
        )

    def close(self) -> None:
        for session in reversed(self.sessions):
            session.close()


def role_of(who: str) -> str:
    words = set(who.split())
    return next(
        (role for role in ('router', 'server', 'operator', 'recorder') if role in words), 'robot'
    )


def name_of(role: str, node: str) -> str:
    return node if role in ('router', 'server') else node[1:]


def tcp_client(port: int) -> zenoh.Session:
    config = zenoh.Config.from_json5(
        f'{{mode: "peer", connect: {{endpoints: ["tcp/localhost:{port}"], timeout_ms: -1, '
        'exit_on_failure: false}, scouting: {multicast: {enabled: false}}}'
    )
    return zenoh.open(config)


@pytest.mark.parametrize(('who', 'where'), TRIED, ids=[f'{a}, {b}' for a, b in TRIED])
def test_a_row_of_the_table(tmp_path, monkeypatch, who, where):
    expected = dict(zip(COLUMNS, CELLS[who, where], strict=True))
    trial = Trial(tmp_path, monkeypatch, who, where)
    try:
        repeat(
            trial.step,
            lambda: (
                trial.witness_works()
                and all(False not in trial.facts()[c] for c in COLUMNS if expected[c])
            ),
            f'what is allowed; {trial.facts()}',
        )
        assert trial.facts() == {column: {answer} for column, answer in expected.items()}
        assert is_connected(trial.session) == (who not in NEVER_CONNECTED)
    finally:
        trial.close()


def test_a_recorder_may_hear_all_that_a_bag_holds():
    allowed = [zenoh.KeyExpr(key) for key in ServerKeys(SITE, '/*').clients.heard]
    for key in selectors(SITE):
        assert any(each.includes(zenoh.KeyExpr(key)) for each in allowed), key


def test_no_log_of_zenoh_has_the_key(tmp_path):
    keys = Keys(tmp_path / 'keys')
    folder = keys.add('server', NODE)
    code = (
        'import sys, pathlib, zenoh; zenoh.init_log_from_env_or("trace")\n'
        'from support.zenoh.access_rig import opened\n'
        f'opened(pathlib.Path({str(folder)!r}), listen={free_port()}).close()'
    )
    ended = subprocess.run(
        [sys.executable, '-c', code],
        env=module_environment() | {'RUST_LOG': 'trace'},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = ended.stdout + ended.stderr
    assert str(folder / 'certificate.pem') in said
    secret = (folder / 'key.pem').read_text().splitlines()[1:-1]
    assert secret
    assert not [line for line in secret if line in said]


def test_the_table_has_every_key_and_every_node():
    assert {role_of(who) for who, _ in TRIED} == {
        *('robot', 'router', 'server', 'operator', 'recorder')
    }
    assert {where for _, where in TRIED} >= {'router', 'server', 'server with `--direct`', 'hub'}
    assert all(CELLS[OVER_ROS])
    assert len(COLUMNS) == 7
