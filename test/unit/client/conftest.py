# SPDX-License-Identifier: Apache-2.0
"""The server of a client that is tested without a network."""

from __future__ import annotations

import pytest

from lerobot_serve.client.fake_server import FakeServer


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()
