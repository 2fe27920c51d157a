# SPDX-License-Identifier: Apache-2.0
"""Run a PostgreSQL server of one test session, and databases of its tests."""

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
import pytest

MISSING = 'no PostgreSQL server is installed (postgres, initdb): the shared state is not tested'
START_LIMIT_S = 60.0
# it refuses to run as root
USERS = ('postgres', 'nobody')


def executable(name: str) -> str | None:
    """Return a program of PostgreSQL."""
    found = shutil.which(name)
    places = sorted(Path('/usr/lib/postgresql').glob(f'*/bin/{name}'))
    return found or (str(places[-1]) if places else None)


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

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = ['-c', 'fsync=off', '-c', f'unix_socket_directories={self.folder}']
        options += ['-c', 'max_connections=60', '-c', 'shared_buffers=16MB']
        log = (self.folder / 'server.log').open('ab')
        self._process = subprocess.Popen(
            [str(executable('postgres')), '-D', str(self.data), '-p', str(self.port), *options],
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

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server; connections are ended at once."""
        if self._process:
            self.resume()
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def pause(self) -> None:
        """Let server and connections stand still: nothing is answered, nothing is closed."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the server and its processes, which lead own groups."""
        if not self._process:
            return
        children = Path(f'/proc/{self.pid}/task/{self.pid}/children').read_text().split()
        for pid in (self.pid, *map(int, children)):
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


def server_user() -> str | None:
    """Return the user that runs the server; None for the present one."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(user for user in USERS if user in known)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server; skip the test where none is installed."""
    if not (executable('postgres') and executable('initdb')):
        pytest.skip(MISSING)
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
