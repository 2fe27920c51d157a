# SPDX-License-Identifier: Apache-2.0
"""An edge and its server over Zenoh with keys: real processes, TLS and access control."""

from __future__ import annotations

import pytest
from support.network.ports import free_port
from support.zenoh.access_rig import Keys, SITE

REFUSED = 'these keys do not allow it'


@pytest.fixture
def site(tmp_path) -> Keys:
    return Keys(tmp_path / 'keys')


@pytest.fixture
def protocol() -> str:
    return 'tls'


@pytest.fixture
def endpoint(protocol) -> str:
    return f"['{protocol}/localhost:{free_port()}']"


@pytest.fixture
def start_server(edge_rig, site, endpoint):
    def start() -> None:
        keys = site.add('server', '/policy_server', direct=True)
        edge_rig.start_server(zenoh_listen=endpoint, zenoh_site=SITE, zenoh_keys=keys)

    return start


@pytest.fixture
def start_edge(edge_rig, endpoint):
    def start(keys, **more):
        return edge_rig.start(
            link='zenoh',
            client_id='robot_1',
            zenoh_connect=endpoint,
            zenoh_site=SITE,
            zenoh_keys=keys,
            **more,
        )

    return start


@pytest.mark.parametrize('protocol', ['tls', 'quic'])
def test_a_robot_with_its_key_is_driven(edge_rig, site, start_server, start_edge):
    robot = site.add('robot', 'robot_1')
    start_server()
    start_edge(robot)
    edge_rig.wait(lambda: len(edge_rig.seen.played) > 30, 'thirty actions of the policy')


@pytest.mark.parametrize('protocol', ['tls', 'quic'])
def test_a_robot_with_the_key_of_another_is_not(edge_rig, site, start_server, start_edge):
    other = site.add('robot', 'robot_2')
    site.add('robot', 'robot_1')
    start_server()
    start_edge(other, request_timeout_s=0.5)
    edge_rig.wait(
        lambda: any(REFUSED in each.reason for each in edge_rig.seen.states), 'the reason'
    )
    assert not edge_rig.seen.played


@pytest.mark.parametrize('what', ['revoked', 'foreign'])
def test_a_key_that_the_server_refuses_drives_nothing_and_says_so(
    edge_rig, site, tmp_path, start_server, start_edge, what
):
    """The refusal is silent: the robot itself names the cause, as docs/security.md says."""
    if what == 'revoked':
        robot = site.add('robot', 'robot_1').rename(tmp_path / 'stolen')
        site.revoke('robot_1')
    else:
        robot = Keys(tmp_path / 'foreign').add('robot', 'robot_1')
    start_server()
    start_edge(robot, request_timeout_s=0.5)
    edge_rig.wait_for_topic('/policy_server/status')
    # the server is up
    before = len(edge_rig.seen.states)
    edge_rig.wait(
        lambda: [each for each in edge_rig.seen.states[before:] if REFUSED in each.reason][5:],
        'the reason, again and again',
    )
    reason = next(each.reason for each in edge_rig.seen.states if REFUSED in each.reason)
    assert 'is not reached through' in reason
    assert not edge_rig.seen.played
    assert 'opened robot_1' not in edge_rig.log('server_1')


def test_an_expired_key_ends_the_node_with_the_remedy(edge_rig, site, start_edge, monkeypatch):
    robot = site.add('robot', 'robot_1')
    site.expire(robot, monkeypatch)
    edge = start_edge(robot, request_timeout_s=0.5)
    assert edge.wait(60) != 0
    assert 'has expired' in edge_rig.log()
    assert 'lerobot-serve keys rotate' in edge_rig.log()
    assert 'Traceback' not in edge_rig.log()


def test_a_key_that_others_read_ends_the_node_with_a_sentence(edge_rig, site, start_edge):
    robot = site.add('robot', 'robot_1')
    (robot / 'key.pem').chmod(0o644)
    process = start_edge(robot)
    assert process.wait(60) != 0
    log = edge_rig.log()
    assert 'has mode 0644' in log
    assert 'chmod 600' in log
    assert 'Traceback' not in log
