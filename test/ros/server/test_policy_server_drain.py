# SPDX-License-Identifier: Apache-2.0
"""A policy server that goes away: what is due is delivered, what comes later is told so."""

from __future__ import annotations

from functools import partial
from pathlib import Path
import queue
import signal
import subprocess

from action_msgs.msg import GoalStatus
import numpy as np
import pytest
from support.nodes.zenoh_links import every_link
from support.processes.stopped_process import halt

from lerobot_serve.contract.schema import Refusal, Status
from lerobot_serve.server.node import REPLIES_UNACKNOWLEDGED
from lerobot_serve.tools.bags.message import CHUNK
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve_interfaces.msg import Observation

STATE = np.linspace(-1, 1, 6, dtype=np.float32)
SLOW = {'policy_kind': 'steered', 'drain_timeout_s': 20.0}


@pytest.fixture
def busy(rig):
    """A server with one robot's request at the policy, two waiting, and one robot without any."""
    rig.steering.turns.close_gate()
    rig.process = rig.start(**SLOW)
    robots = rig.clients(4)
    for number, robot in enumerate(robots[:3]):
        robot.request(state=(STATE + number)[None])
        rig.wait_for_requests(number + 1)
    rig.wait_for_events('predict')
    return robots


def expect_chunks(robots, first: int = 0) -> None:
    for number, robot in enumerate(robots, first):
        chunk = robot.take()
        assert (chunk.status, chunk.header.seq) == (Status.OK, 1)
        assert np.array_equal(chunk.robot[0], STATE + number)


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Return whether a signal was sent that the process did not take yet."""
    for line in Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith('ShdPnd:'):
            return bool(int(line.split()[1], 16) & 1 << number - 1)
    return False


def hears(bag: Path, robot) -> bool:
    """Let a robot be answered, and return whether an answer is in the bag by now."""
    assert robot.round_trip().status == Status.OK
    # the folder is there a moment before the file in it, and that before its first bytes
    is_begun = any(file.stat().st_size for file in bag.glob('*.mcap'))
    return is_begun and any(message.type == CHUNK for message in Bag(bag).read())


def expect_draining(rig, robot) -> None:
    """An open session and a new one, while the server drains."""
    late = robot.round_trip()
    assert late.status == Status.DRAINING
    assert 'another server' in late.status_text
    reply = rig.open_session(rig.stranger('late'))
    assert (reply.accepted, reply.code) == (False, Refusal.DRAINING)
    assert 'another server' in reply.reason


@every_link
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_lets_everybody_have_the_chunk_that_is_due(rig, busy, number, log_of_rig):
    rig.process.send_signal(number)
    rig.wait_for('draining')
    expect_draining(rig, busy[3])
    rig.steering.turns.open_gate()
    expect_chunks(busy[:3])
    assert rig.process.wait(20) == 0
    log = log_of_rig('policy_server')
    assert 'replies were outstanding' not in log
    assert 'Traceback' not in log
    assert 'never retrieved' not in log


@every_link
def test_deactivating_lets_everybody_have_the_chunk_that_is_due(rig, busy):
    done = rig.begin('deactivate')
    rig.wait_for('draining')
    expect_draining(rig, busy[3])
    assert not rig.change_state('cleanup')
    assert not done.done()
    rig.steering.turns.open_gate()
    assert rig.finished(done, 'it is drained').success
    expect_chunks(busy[:3])
    assert rig.state() == 'inactive'
    assert rig.drops() == {'draining': 1, 'refused_draining': 1}
    assert [event.split()[1][:7] for event in rig.steering.events('predict')] == [
        'robot_0',
        'robot_1',
        'robot_2',
    ]


def test_a_signal_while_it_drains_takes_nothing_away(rig, busy):
    done = rig.begin('deactivate')
    rig.wait_for('draining')
    rig.process.terminate()
    rig.wait(lambda: not is_pending(rig.process.pid, signal.SIGTERM), 'it has heard the signal')
    rig.steering.turns.let()
    expect_chunks(busy[:1])
    rig.steering.turns.open_gate()
    expect_chunks(busy[1:3], first=1)
    assert rig.finished(done, 'who asked for it is answered').success
    assert rig.process.wait(20) == 0


def test_goals_that_are_due_have_their_results_before_the_end(rig):
    rig.steering.turns.close_gate()
    process = rig.start(**SLOW)
    goals = [rig.predict(Observation(observation_steps=1, state=STATE.tolist()))]
    rig.wait_for_events('predict')
    goals += [rig.predict(Observation(observation_steps=1, state=STATE.tolist()))]
    rig.wait_for_requests(2)
    process.terminate()
    rig.wait_for('draining')
    rig.steering.turns.open_gate()
    for goal in goals:
        status, chunk = goal.result()
        assert (status, chunk.status) == (GoalStatus.STATUS_SUCCEEDED, Status.OK)
    assert process.wait(20) == 0


def test_a_policy_that_hangs_is_not_waited_for_longer_than_agreed(rig, log_of_rig):
    rig.steering.turns.close_gate()
    process = rig.start(policy_kind='steered', drain_timeout_s=0.1)
    client = rig.client()
    client.request()
    rig.wait_for_events('predict')
    assert rig.change_state('deactivate')
    assert rig.state() == 'inactive'
    assert 'replies were outstanding after drain_timeout_s (0.1 s)' in log_of_rig('policy_server')
    with pytest.raises(queue.Empty):
        client.take(0)
    # who hangs now may be needed again later
    rig.steering.turns.open_gate()
    assert client.take().status == Status.OK
    assert rig.change_state('activate')
    assert client.round_trip().status == Status.OK
    process.terminate()
    assert process.wait(20) == 0


@pytest.mark.slow
def test_a_policy_that_hangs_at_the_end_is_abandoned(rig, log_of_rig):
    rig.steering.turns.close_gate()
    process = rig.start(policy_kind='steered', drain_timeout_s=0.1)
    rig.client().request()
    rig.wait_for_events('predict')
    process.terminate()
    assert process.wait(20) == 1
    log = log_of_rig('policy_server')
    assert 'outstanding after drain_timeout_s (0.1 s)' in log
    assert 'thread inference still runs' in log


def test_a_listener_that_hangs_is_told_from_an_answer_that_is_due(rig, log_of_rig, tmp_path):
    rig.start(policy_kind='steered', drain_timeout_s=0.5)
    client = rig.client()
    assert client.round_trip().status == Status.OK
    bag = tmp_path / 'bag'
    command = ['lerobot-serve', 'record', bag, '--topic', client.ask.reply_topic]
    recorder = subprocess.Popen(end_with_parent(command), stdout=subprocess.DEVNULL)
    try:
        rig.wait(partial(hears, bag, client), 'the recorder hears')
        halt(recorder)
        assert client.round_trip().status == Status.OK
        assert rig.change_state('deactivate')
    finally:
        recorder.kill()
        recorder.wait(20)
    log = log_of_rig('policy_server')
    assert f'{REPLIES_UNACKNOWLEDGED} after drain_timeout_s (0.5 s)' in log
    assert 'replies were outstanding' not in log
