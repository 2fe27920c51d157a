# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server for the tests of a file, and a database for each test."""

from __future__ import annotations

import pytest
from support.postgres.server import postgres_server


@pytest.fixture(scope='module')
def server():
    with postgres_server() as running:
        yield running


@pytest.fixture
def url(server):
    return server.new_database()
