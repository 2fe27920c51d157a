# SPDX-License-Identifier: Apache-2.0
"""Signs of life between real processes: a lost server is left at once, without a router."""

from __future__ import annotations

from collections.abc import Callable
import signal
import subprocess

import pytest
from support.nodes.edge_rig import CALM, EdgeRig, LEFT, RIGHT, SAME, sessions, without_gaps
from support.nodes.zenoh_links import every_link

from lerobot_serve_interfaces.msg import EdgeState

pytestmark = pytest.mark.long

# as an operator has it who sets nothing: FAST of the rig is for other tests
DEFAULTS = {
    **CALM,
    'request_timeout_s': 5.0,
    'reconnect_initial_backoff_s': 0.5,
    'reconnect_max_backoff_s': 10.0,
}


def stop_process(_: EdgeRig, process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGSTOP)


def kill_process(rig: EdgeRig, process: subprocess.Popen) -> None:
    rig.kill(process)


@pytest.fixture
def stopped():
    """Give a list of processes that are continued at the end, so that they can end."""
    processes: list[subprocess.Popen] = []
    yield processes
    for process in processes:
        process.send_signal(signal.SIGCONT)


def start_two(rig: EdgeRig) -> tuple[dict[str, subprocess.Popen], str, str]:
    """Start an edge with two servers; return them, which one drives it, and which does not."""
    servers = {LEFT: rig.start_server('/left', **SAME)}
    servers[RIGHT] = rig.start_server('/right', **SAME)
    for name in (LEFT, RIGHT):
        rig.wait_for_topic(f'{name}/status')
    rig.start(servers=[LEFT, RIGHT], **DEFAULTS)
    rig.wait_for_play()
    first = rig.wait(lambda: rig.seen.last.server, 'a server is named')
    (second,) = servers.keys() - {first}
    return servers, first, second


@pytest.mark.slow
@every_link
@pytest.mark.parametrize('lose', [kill_process, stop_process])
def test_a_lost_server_costs_no_stall_where_there_is_a_second(
    edge_rig, stopped, lose: Callable[[EdgeRig, subprocess.Popen], None]
):
    servers, first, second = start_two(edge_rig)
    before = sessions(edge_rig)
    if lose is stop_process:
        stopped.append(servers[first])
    lose(edge_rig, servers[first])
    edge_rig.wait_for_server(second)
    edge_rig.wait(lambda: sessions(edge_rig) - before, 'the other one is played')
    seen = edge_rig.seen
    assert without_gaps(seen.executed)
    assert seen.rungs == {EdgeState.RUNG_POLICY}
    assert seen.last.stalls == 0
    # not by a timeout of a request
    assert 'request_timeout' not in seen.drops()
    assert EdgeState.STALLED not in {state.state for state in seen.states}


def test_a_stopped_single_server_is_lost_and_found_again(edge_rig, stopped):
    server = edge_rig.start_server(**SAME)
    # no request is under way when it is stopped, nor does one end by time
    edge_rig.start(**{**DEFAULTS, 'request_timeout_s': 60.0})
    edge_rig.wait_for_play()
    stopped.append(server)
    server.send_signal(signal.SIGSTOP)
    edge_rig.wait_for_state(EdgeState.RECONNECTING, reason='liveliness lease expired (2 s)')
    server.send_signal(signal.SIGCONT)
    edge_rig.wait_for_state(EdgeState.STREAMING)
    edge_rig.wait_for_play()


@pytest.mark.slow
def test_a_server_that_was_stopped_and_is_killed_later_is_lost_again(edge_rig):
    server = edge_rig.start_server(**SAME)
    edge_rig.start(**{**DEFAULTS, 'request_timeout_s': 60.0})
    edge_rig.wait_for_play()
    for _ in range(2):
        server.send_signal(signal.SIGSTOP)
        edge_rig.wait_for_state(EdgeState.RECONNECTING, reason='liveliness lease expired (2 s)')
        server.send_signal(signal.SIGCONT)
        edge_rig.wait_for_state(EdgeState.STREAMING)
        edge_rig.wait_for_play()
    edge_rig.kill(server)
    edge_rig.wait_for_state(EdgeState.RECONNECTING, reason='liveliness lease expired (2 s)')


@every_link
def test_a_server_that_says_goodbye_is_left_before_anything_is_asked(edge_rig):
    servers, first, second = start_two(edge_rig)
    edge_rig.stop(servers[first])
    edge_rig.wait_for_server(second)
    edge_rig.wait_for_play(30)
    assert edge_rig.seen.last.stalls == 0
