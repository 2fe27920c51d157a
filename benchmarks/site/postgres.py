# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of one benchmark or test, with databases of its own. Main thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
import os
from pathlib import Path
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid

import psycopg
from psycopg import sql

from lerobot_serve.entry_points import defer_signals
from lerobot_serve.errors import UserError
from lerobot_serve.tools.processes import end_with_parent

MISSING = 'no PostgreSQL server is installed (postgres, initdb): the shared state is not tested'
START_LIMIT_S, STOP_LIMIT_S = 60.0, 30.0
# it refuses to run as root
USERS = ('postgres', 'nobody')


def executable(name: str) -> str | None:
    """Return a program of PostgreSQL."""
    found = shutil.which(name)
    places = sorted(Path('/usr/lib/postgresql').glob(f'*/bin/{name}'))
    return found or (str(places[-1]) if places else None)


def is_installed() -> bool:
    return bool(executable('postgres') and executable('initdb'))


class PostgresServer:
    """
    A server on a port of its own; `stop` and `start` may be called again and again. `settings`
    take effect with the next start. A standby copies the data of a server that is stopped, and
    follows it.
    """

    def __init__(self, folder: Path, standby_of: PostgresServer | None = None) -> None:
        self.folder, self.data = folder, folder / 'data'
        self.settings: dict[str, object] = {}
        self.user = server_user()
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            self.port = free.getsockname()[1]
        if self.user:
            shutil.chown(folder, self.user)
        self._process: subprocess.Popen[bytes] | None = None
        if standby_of:
            self._copy(standby_of)
            return
        self._run(executable('initdb'), '-D', self.data, '-U', 'router', '-A', 'trust', '-N')
        self.start()

    def _copy(self, primary: PostgresServer) -> None:
        shutil.copytree(primary.data, self.data)
        (self.data / 'standby.signal').touch()
        for file in (self.data, *self.data.rglob('*')):
            self.give(file)
        self.settings['primary_conninfo'] = (
            f'host=127.0.0.1 port={primary.port} user=router application_name=standby'
        )

    def give(self, file: Path) -> None:
        """Let the user of the server own a file."""
        if self.user:
            shutil.chown(file, self.user)

    def _run(self, program: str | None, *arguments: object) -> None:
        subprocess.run(
            [str(program), *map(str, arguments)],
            user=self.user,
            cwd=self.folder,
            check=True,
            capture_output=True,
        )

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Return the server and its processes; empty while it is stopped."""
        if not self._process:
            return []
        children = Path(f'/proc/{self.pid}/task/{self.pid}/children').read_text().split()
        return [self.pid, *map(int, children)]

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = {
            'fsync': 'off',
            'unix_socket_directories': self.folder,
            'max_connections': 60,
            'shared_buffers': '16MB',
            **self.settings,
        }
        command = [str(executable('postgres')), '-D', str(self.data), '-p', str(self.port)]
        with (self.folder / 'server.log').open('ab') as log, defer_signals():
            self._process = subprocess.Popen(
                end_with_parent([*command, *as_options(settings)]),
                user=self.user,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self._connect('postgres').close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def command(self, address: str, port: int) -> list[str]:
        """Return what runs the stopped server at another address."""
        settings = {
            'listen_addresses': address,
            'port': port,
            'unix_socket_directories': self.folder,
            'fsync': 'off',
        }
        return [
            *(become(self.user) if self.user else []),
            str(executable('postgres')),
            *('-D', str(self.data)),
            *as_options(settings),
        ]

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server; connections are ended at once."""
        if self._process:
            self.resume()
            self._process.send_signal(how)
            self._process.wait(STOP_LIMIT_S)
            self._process = None

    def kill(self) -> None:
        """End the server and all its processes with SIGKILL, as a crash of its machine does."""
        for pid in reversed(self.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process:
            self._process.wait(STOP_LIMIT_S)
            self._process = None

    def pause(self) -> None:
        """Let server and connections stand still: nothing is answered, nothing is closed."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the server and its processes, which lead own groups."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def url(self, database: str) -> str:
        return f'postgresql://router@127.0.0.1:{self.port}/{database}'

    def new_database(self) -> str:
        """Create a database; return its URL."""
        name = f'fleet_{uuid.uuid4().hex[:12]}'
        self.execute(sql.SQL('CREATE DATABASE {}').format(sql.Identifier(name)))
        return self.url(name)

    def has_database(self, name: str) -> bool:
        with self._connect('postgres') as connection:
            query = 'SELECT 1 FROM pg_database WHERE datname = %s'
            return connection.execute(query, (name,)).fetchone() is not None

    def execute(self, statement: str | sql.Composed) -> None:
        """Run a statement as the owner of everything, also where others need a password."""
        with self._connect('postgres') as connection:
            connection.execute(statement)

    def _connect(self, database: str) -> psycopg.Connection:
        return psycopg.connect(
            f'postgresql://router@:{self.port}/{database}?host={self.folder}',
            autocommit=True,
            connect_timeout=2,
        )


def as_options(settings: Mapping[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in ('-c', f'{name}={value}')]


def become(user: str) -> list[str]:
    """Return what makes a command that of a user."""
    group = pwd.getpwnam(user).pw_gid
    return ['setpriv', f'--reuid={user}', f'--regid={group}', '--clear-groups']


def server_user() -> str | None:
    """Return the user that runs the server; None for the present one."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(user for user in USERS if user in known)


@contextmanager
def server_folder() -> Iterator[Path]:
    """Give a folder below /tmp, which the user of a server reaches; paths of sockets are short."""
    folder = Path(tempfile.mkdtemp(prefix='lerobot_serve_pg_', dir='/tmp'))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server. Raises UserError where none is installed."""
    if not is_installed():
        raise UserError(MISSING)
    with server_folder() as folder:
        server = PostgresServer(folder)
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)
