# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server for the tests of a file, and a database for each test."""

from __future__ import annotations

import pytest
from support.postgres.server import postgres_server

from lerobot_serve.router.storage import follower


@pytest.fixture(scope='module')
def server():
    with postgres_server() as running:
        yield running


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine takes seconds from one step of a test to the next."""
    for name in ('MEMBER_S', 'STUCK_S', 'AWAY_S', 'IDLE_S'):
        monkeypatch.setattr(follower, name, 60.0)


@pytest.fixture
def url(server):
    return server.new_database()
