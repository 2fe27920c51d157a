# SPDX-License-Identifier: Apache-2.0
"""The PostgreSQL server of the benchmarks, in tests: skipped where none is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import signal

import pytest

from benchmarks.site import postgres
from benchmarks.site.postgres import PostgresServer

MISSING = postgres.MISSING


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server; skip the test where none is installed."""
    if not postgres.is_installed():
        pytest.skip(MISSING)
    with postgres.postgres_server() as server:
        yield server


@contextmanager
def standby_server(primary: PostgresServer) -> Iterator[PostgresServer]:
    """Run a copy of a server that follows it."""
    with postgres.server_folder() as folder:
        primary.stop()
        server = PostgresServer(folder, standby_of=primary)
        primary.start()
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)
