# SPDX-License-Identifier: Apache-2.0
"""An edge controller whose servers are killed, come back, and do not: the robot stays safe."""

from __future__ import annotations

import numpy as np
import pytest
from support.nodes.edge_rig import BUFFERED, CALM, LEFT, RIGHT, SAME, sessions, SHORT, without_gaps
from support.nodes.played_robot import FPS, robot_yaml
from support.nodes.zenoh_links import both_links, every_link

from lerobot_serve_interfaces.msg import EdgeState

pytestmark = pytest.mark.long

KILLS = 4
# below what a chunk lasts, so that the last of its rows are too old when no other one comes
MAX_AGE_S = 0.45
# a lease of two seconds, noticed late, is within what is buffered
LONG = {'policy_path': 'joints=6,chunk=210,cameras=,fps=30'}


@pytest.mark.slow
def test_a_server_that_is_killed_again_and_again_leaves_the_robot_safe(edge_rig):
    server = edge_rig.start_server(**SHORT)
    edge = edge_rig.start(max_action_age_s=MAX_AGE_S, request_threshold_s=0.4, **CALM)
    for _ in range(KILLS):
        edge_rig.wait_for_play()
        before, stalls = sessions(edge_rig), edge_rig.seen.last.stalls
        edge_rig.kill(server)
        # a new server may be found before the buffer is empty
        edge_rig.wait(lambda stalls=stalls: edge_rig.seen.last.stalls > stalls, 'a stall')
        server = edge_rig.start_server(**SHORT)
        edge_rig.wait(lambda before=before: sessions(edge_rig) - before, 'motion resumes')
    seen = edge_rig.seen
    assert edge.poll() is None
    assert 'Traceback' not in edge_rig.log()
    assert without_gaps(seen.executed)
    assert max(action.age_s for action in seen.played) <= MAX_AGE_S
    assert seen.drops()['stale_action'] >= KILLS
    # in between it came to rest, and did nothing else
    assert seen.rungs <= {EdgeState.RUNG_POLICY, EdgeState.RUNG_RAMP, EdgeState.RUNG_HOLD}
    assert EdgeState.DEAD not in {state.state for state in seen.states}
    assert seen.last.stalls >= KILLS
    assert all(np.isfinite(action.commanded).all() for action in seen.executed)


@pytest.mark.slow
@every_link
def test_the_next_server_takes_over_within_what_is_buffered(edge_rig):
    servers = {LEFT: edge_rig.start_server('/left', **LONG)}
    servers[RIGHT] = edge_rig.start_server('/right', **LONG)
    for name in (LEFT, RIGHT):
        edge_rig.wait_for_topic(f'{name}/status')
    edge_rig.start(servers=[LEFT, RIGHT], **BUFFERED)
    edge_rig.wait_for_play()
    # on a busy machine the second may be found first
    first = edge_rig.wait(lambda: edge_rig.seen.last.server, 'a server is told')
    (second,) = servers.keys() - {first}
    before = sessions(edge_rig)
    edge_rig.kill(servers[first])
    edge_rig.wait_for_server(second)
    edge_rig.wait(lambda: sessions(edge_rig) - before, 'the other one is played')
    edge_rig.wait_for_play(int(FPS))
    seen = edge_rig.seen
    assert without_gaps(seen.executed)
    assert seen.rungs == {EdgeState.RUNG_POLICY}
    assert seen.last.stalls == 0
    assert EdgeState.STALLED not in {state.state for state in seen.states}


@pytest.mark.slow
@both_links
def test_it_goes_home_to_the_preferred_server_with_the_next_episode(edge_rig):
    edge_rig.start_server('/right', **SAME)
    # a machine that is busy with starting the other is no reason to go
    edge_rig.start(servers=[LEFT, RIGHT], request_timeout_s=4.0)
    edge_rig.wait_for_server(RIGHT)
    edge_rig.start_server('/left', **SAME)
    edge_rig.wait_for_topic(f'{LEFT}/status')
    edge_rig.wait_for_play(int(FPS))
    assert edge_rig.seen.last.server == RIGHT
    edge_rig.go_home(LEFT)


@pytest.mark.slow
def test_a_robot_without_a_server_for_too_long_is_given_up_until_a_reset(edge_rig):
    stops = edge_rig.offer('/robot_1/stop')
    # the way to the safe pose is reckoned from the ends of these
    edge_rig.robot = robot_yaml(limits='min: -0.7, max: 0.7, max_step: 0.15')
    server = edge_rig.start_server()
    edge_rig.start(max_offline_s=1.0, teardown='safe_pose', stop_service='/robot_1/stop')
    edge_rig.wait_for_play()
    edge_rig.stop(server)
    assert 'call ~/reset' in edge_rig.wait_for_state(EdgeState.DEAD, reason='no session').reason
    edge_rig.wait(lambda: stops, 'the stop service is called')
    edge_rig.wait_for_ticks()
    down = [action.rung for action in edge_rig.seen.executed]
    assert down[-2:] == [EdgeState.RUNG_SAFE_POSE, EdgeState.RUNG_STOP_SERVICE]
    assert EdgeState.RUNG_RAMP in down
    assert edge_rig.seen.last.rung == EdgeState.RUNG_STOP_SERVICE
    assert list(edge_rig.body.positions.values()) == pytest.approx([0.0] * 6, abs=1e-3)
    edge_rig.wait_for_ticks()
    assert len(edge_rig.seen.executed) == len(down)
    assert len(stops) == 1
    # a server alone does not revive it
    edge_rig.start_server()
    edge_rig.wait_for_topic('/policy_server/status')
    edge_rig.wait_for_ticks()
    assert edge_rig.seen.last.state == EdgeState.DEAD
    edge_rig.trigger('reset')
    edge_rig.wait_for_play()
    edge_rig.wait_for_state(EdgeState.STREAMING)


@pytest.mark.slow
@both_links
def test_a_server_that_comes_back_as_another_robots_is_the_end(edge_rig, steering):
    server = edge_rig.start_server()
    edge_rig.start()
    edge_rig.wait_for_play()
    edge_rig.stop(server)
    edge_rig.start_server(policy_kind='steered', policy_path=steering.path(joint='arm'))
    dead = edge_rig.wait_for_state(EdgeState.DEAD)
    assert 'arm_0.pos' in dead.reason
    assert 'joint_0.pos' in dead.reason
    # teardown as it is by default
    edge_rig.wait_for_rung(EdgeState.RUNG_HOLD)
