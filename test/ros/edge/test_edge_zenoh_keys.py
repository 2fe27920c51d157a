# SPDX-License-Identifier: Apache-2.0
"""An edge and its server over Zenoh with keys: real processes, TLS and access control."""

from __future__ import annotations

import pytest
from support.network.ports import free_port
from support.zenoh.access_rig import Keys, SITE


@pytest.fixture
def site(tmp_path) -> Keys:
    return Keys(tmp_path / 'keys')


@pytest.fixture
def protocol() -> str:
    return 'tls'


@pytest.fixture
def endpoint(protocol) -> str:
    return f"['{protocol}/localhost:{free_port()}']"


@pytest.mark.parametrize('protocol', ['tls', 'quic'])
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


@pytest.mark.parametrize('protocol', ['tls', 'quic'])
def test_a_robot_with_the_key_of_another_is_not(edge_rig, site, endpoint):
    other = site.add('robot', 'robot_2')
    site.add('robot', 'robot_1')
    server = site.add('server', '/policy_server', direct=True)
    edge_rig.start_server(zenoh_listen=endpoint, zenoh_site=SITE, zenoh_keys=server)
    edge_rig.start(
        link='zenoh',
        client_id='robot_1',
        zenoh_connect=endpoint,
        zenoh_site=SITE,
        zenoh_keys=other,
        request_timeout_s=0.5,
    )
    edge_rig.wait(
        lambda: any('these keys do not allow it' in each.reason for each in edge_rig.seen.states),
        'the reason',
    )
    assert not edge_rig.seen.played


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
