# SPDX-License-Identifier: Apache-2.0
"""An edge and its server over Zenoh with keys: real processes, TLS and access control."""

from __future__ import annotations

import pytest
from support.zenoh.access_rig import free_port, Keys, SITE


@pytest.fixture
def site(tmp_path) -> Keys:
    return Keys(tmp_path / 'keys')


@pytest.fixture
def endpoint() -> str:
    return f"['tls/localhost:{free_port()}']"


def test_a_robot_with_its_key_is_driven(edge_rig, site, endpoint):
    robot = site.add('robot', 'robot_1')
    server = site.add('server', '/policy_server', direct=True)
    edge_rig.start_server(zenoh_listen=endpoint, zenoh_site=SITE, zenoh_keys=server)
    edge_rig.start(
        link='zenoh',
        client_id='robot_1',
        zenoh_connect=endpoint,
        zenoh_site=SITE,
        zenoh_keys=robot,
    )
    edge_rig.wait(lambda: len(edge_rig.seen.played) > 30, 'thirty actions of the policy')


def test_a_key_that_others_read_ends_the_node_with_a_sentence(edge_rig, site, endpoint):
    robot = site.add('robot', 'robot_1')
    (robot / 'key.pem').chmod(0o644)
    process = edge_rig.start(
        link='zenoh',
        client_id='robot_1',
        zenoh_connect=endpoint,
        zenoh_site=SITE,
        zenoh_keys=robot,
    )
    assert process.wait(60) != 0
    log = edge_rig.log()
    assert 'has mode 0644' in log
    assert 'chmod 600' in log
    assert 'Traceback' not in log
