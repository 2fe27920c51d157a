# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of one benchmark or test, with databases of its own. Main thread."""

from __future__ import annotations

from collections.abc import Iterator
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
from lerobot_serve.tools.processes.parent_death import end_with_parent

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
    """A server on a port of its own; `stop` and `start` may be called again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / 'data'
        self.user = server_user()
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            self.port = free.getsockname()[1]
        if self.user:
            shutil.chown(folder, self.user)
        self._run(executable('initdb'), '-D', self.data, '-U', 'router', '-A', 'trust', '-N')
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

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
        options = ['-c', 'fsync=off', '-c', f'unix_socket_directories={self.folder}']
        options += ['-c', 'max_connections=60', '-c', 'shared_buffers=16MB']
        command = [str(executable('postgres')), '-D', str(self.data), '-p', str(self.port)]
        with (self.folder / 'server.log').open('ab') as log, defer_signals():
            self._process = subprocess.Popen(
                end_with_parent([*command, *options]),
                user=self.user,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                psycopg.connect(self.url('postgres'), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def command(self, address: str, port: int) -> list[str]:
        """Return what runs the stopped server at another address."""
        options = {
            'listen_addresses': address,
            'port': port,
            'unix_socket_directories': self.folder,
            'fsync': 'off',
        }
        return [
            *(become(self.user) if self.user else []),
            str(executable('postgres')),
            *('-D', str(self.data)),
            *(word for name, value in options.items() for word in ('-c', f'{name}={value}')),
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
        with psycopg.connect(self.url('postgres'), autocommit=True) as connection:
            connection.execute(sql.SQL('CREATE DATABASE {}').format(sql.Identifier(name)))
        return self.url(name)


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
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server. Raises UserError where none is installed."""
    if not is_installed():
        raise UserError(MISSING)
    # below /tmp: its user must reach it, and its socket's path is short
    folder = Path(tempfile.mkdtemp(prefix='lerobot_serve_pg_', dir='/tmp'))
    server = None
    try:
        server = PostgresServer(folder)
        yield server
    finally:
        if server:
            server.stop(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)
