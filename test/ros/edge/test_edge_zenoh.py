# SPDX-License-Identifier: Apache-2.0
"""An edge and its servers over Zenoh."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture
def link() -> str:
    """The test sets the link itself."""
    return 'ros'


@pytest.fixture
def endpoint() -> str:
    """A free TCP endpoint."""
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return f'tcp/127.0.0.1:{found.getsockname()[1]}'


def test_a_robot_is_driven(edge_rig, endpoint):
    edge_rig.start_server(zenoh_listen=f"['{endpoint}']")
    edge_rig.start(link='zenoh', zenoh_connect=f"['{endpoint}']")
    edge_rig.wait(lambda: len(edge_rig.seen.played) > 30, 'thirty actions of the policy')
