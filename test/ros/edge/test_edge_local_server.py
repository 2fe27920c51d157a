# SPDX-License-Identifier: Apache-2.0
"""
A robot has a small policy of its own: while its site over Zenoh is away, a policy server on the
robot drives, over ROS 2, and the site again from the next episode on.
"""

from __future__ import annotations

import pytest
from support.nodes.edge_rig import BUFFERED, sessions, without_gaps
from support.nodes.played_robot import FPS

from lerobot_serve_interfaces.msg import EdgeState

SITE, LOCAL = '/site/policy_server', '/robot_1/policy_server'
LARGE = {'policy_path': 'joints=6,chunk=240,cameras=,fps=30'}
SMALL = {'policy_path': 'joints=6,chunk=210,cameras=,fps=30'}


@pytest.fixture
def link() -> str:
    """The test sets the link of each server itself."""
    return 'ros'


@pytest.mark.slow
def test_it_drives_while_the_site_is_away(edge_rig, endpoint):
    seen = edge_rig.seen
    site = edge_rig.start_server('/site', zenoh_listen=[endpoint], **LARGE)
    edge_rig.start_server('/robot_1', **SMALL)
    for name in (SITE, LOCAL):
        edge_rig.wait_for_topic(f'{name}/status')
    edge_rig.start(
        link='zenoh',
        servers=[SITE, f'ros:{LOCAL}'],
        zenoh_connect=[endpoint],
        request_timeout_s=4.0,
        **BUFFERED,
    )
    edge_rig.wait_for_play(int(FPS))
    if seen.last.server == LOCAL:
        # a busy machine found it first
        edge_rig.go_home(SITE)
    before, large = sessions(edge_rig), seen.last.policy
    count = len(seen.executed)

    edge_rig.kill(site)
    edge_rig.wait_for_server(LOCAL)
    edge_rig.wait(lambda: sessions(edge_rig) - before, 'the small policy is played')
    edge_rig.wait_for_play(int(FPS))
    assert seen.last.policy != large
    during = seen.executed[count:]
    assert {action.rung for action in during} == {EdgeState.RUNG_POLICY}
    assert without_gaps(during)
    assert seen.last.stalls == 0
    # within one episode, and each command says whose it is
    assert len({action.episode_id for action in during}) == 1
    assert {action.policy for action in during} == {large, seen.last.policy}

    edge_rig.start_server('/site', zenoh_listen=[endpoint], **LARGE)
    edge_rig.wait_for_topic(f'{SITE}/status')
    edge_rig.wait_for_play(int(FPS))
    # not within an episode
    assert seen.last.server == LOCAL
    edge_rig.go_home(SITE)
