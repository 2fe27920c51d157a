# SPDX-License-Identifier: Apache-2.0
"""The action PredictChunk of a router: a replica of the slot that the split says answers it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support.nodes.predict_chunk_rig import (
    ABORTED,
    answered,
    asking,
    CANCELED,
    first_row,
    refused,
    STATE,
    SUCCEEDED,
)
from support.nodes.server_rig import ServerRig
from support.nodes.zenoh_links import both_links

from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.ros.predict_chunk_proxy import UNANSWERED
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve_interfaces.msg import Observation

pytestmark = pytest.mark.slow

ROUTER = '/policy_router'
# as long as ros2 launch waits for a process that is to end
ENDS_S = 5.0


@pytest.fixture
def caller(router_rig):
    """Asks the router as one asks a policy server."""
    made = ServerRig(router_rig.node, router_rig.fleet, None, ROUTER)
    yield made
    made.end()


def placed(folder: Path) -> dict[str, str]:
    """Return the slot of each episode of which a trace tells so far."""
    (file,) = folder.glob('*.jsonl')
    decisions = [record for _, record in read_records(file) if record['kind'] == 'placement']
    return {record['episode_id']: record['slot'] for record in decisions}


@both_links
def test_a_goal_goes_where_the_split_says_and_stays_there(router_rig, caller, tmp_path):
    folder = tmp_path / 'trace'
    router_rig.slots(trace_folder=folder)
    names = [f'episode-{number}' for number in range(8)]
    wanted = ['a' if bucket(name) < 50 else 'b' for name in names]
    assert set(wanted) == {'a', 'b'}
    chunks = [answered(caller, name) for name in names]
    assert [chunk.slot for chunk in chunks] == wanted
    assert [chunk.episode_id for chunk in chunks] == names
    # the policy that answered, as it says itself
    policies = {slot: {c.policy for c in chunks if c.slot == slot} for slot in 'ab'}
    assert policies == {slot: {router_rig.slot(slot).policy} for slot in 'ab'}
    assert np.array_equal(first_row(chunks[0]), STATE)
    decision = router_rig.wait_for_decision(names[0])
    assert (decision.slot, decision.bucket) == (wanted[0], bucket(names[0]))
    router_rig.wait(lambda: placed(folder) == dict(zip(names, wanted, strict=True)), 'the trace')
    assert not router_rig.set(split_percent=0)
    assert [answered(caller, name).slot for name in names] == wanted
    assert {answered(caller, f'new-{number}').slot for number in range(4)} == {'b'}
    # a robot finds its episode where a goal has placed it
    robot = router_rig.robot()
    assert [robot.round_trip(episode_id=name).slot for name in names] == wanted


def test_goals_without_an_episode_are_each_placed_for_themselves(router_rig, caller):
    router_rig.slots()
    slots = {answered(caller).slot for _ in range(24)}
    assert slots == {'a', 'b'}
    assert router_rig.wait_for_decision('').missing_episode_id
    assert caller.status().active_sessions == 0
    assert not router_rig.drops()


def test_what_a_replica_cannot_answer_is_told_in_its_words(router_rig, caller):
    router_rig.slots()
    chunk = refused(caller, router_rig.episode('a'), task='raise')
    assert (chunk.status, chunk.slot) == (Status.POLICY_ERROR, 'a')
    assert 'raised on purpose' in chunk.status_text
    chunk = refused(caller, router_rig.episode('b'), state=STATE[:5])
    assert (chunk.status, chunk.slot) == (Status.BAD_OBSERVATION, 'b')
    assert '6 values' in chunk.status_text
    # refused by the router itself, as a server does
    status, chunk = caller.predict(Observation()).result()
    assert (status, chunk.status) == (ABORTED, Status.BAD_OBSERVATION)
    assert UNANSWERED not in router_rig.drops()
    assert router_rig.state.health == 'healthy'


@both_links
def test_a_slot_that_is_down_is_done_without(router_rig, caller):
    router_rig.slots()
    running = router_rig.episode('b')
    assert answered(caller, running).slot == 'b'
    router_rig.kill('b')
    router_rig.wait_for_health('slot_b_drained')
    assert answered(caller, router_rig.episode('b', salt='new')).slot == 'a'
    moved = answered(caller, running)
    assert (moved.slot, moved.header.flags) == ('a', Flag.POLICY_CHANGED)
    assert router_rig.wait_for_decision(running, moved=True).slot == 'a'
    again = answered(caller, running)
    assert (again.slot, again.header.flags) == ('a', 0)


def test_with_both_slots_down_a_goal_is_aborted_and_says_what_to_do(router_rig, caller):
    router_rig.slots()
    for name in ('a', 'b'):
        router_rig.kill(name)
    router_rig.wait_for_health('unavailable')
    for number in range(2):
        chunk = refused(caller, router_rig.episode('a'))
        assert chunk.status == Status.NO_SESSION
        for words in ('no eligible slot', '/a/policy_server', '/b/policy_server', 'repair a slot'):
            assert words in chunk.status_text
        router_rig.wait_for_drop(UNANSWERED, number + 1)
    # nothing was remembered of an episode that nobody could take
    router_rig.server('b', 'b')
    router_rig.wait_for_health('slot_a_drained')
    assert answered(caller, router_rig.episode('a')).slot == 'b'


@both_links
def test_a_cancel_reaches_the_replica_which_has_the_last_word(router_rig, caller):
    turns = router_rig.steering('one').turns
    turns.close_gate()
    router_rig.server('one', 'prod')
    router_rig.router(slot_prod=['one'])
    router_rig.wait_for_health('healthy')
    working = caller.predict(asking())
    router_rig.wait(lambda: router_rig.steering('one').events('predict'), 'the policy works')
    waiting, other = caller.predict(asking()), caller.predict(asking(state=2 * STATE))
    server = ServerRig(router_rig.node, router_rig.fleet, None, '/one/policy_server')
    server.wait_for_requests(3)
    assert waiting.cancel()
    assert waiting.result()[0] == CANCELED
    assert not working.cancel()
    assert not working.done()
    turns.open_gate()
    for goal, state in ((working, STATE), (other, 2 * STATE)):
        status, chunk = goal.result()
        assert (status, chunk.slot) == (SUCCEEDED, 'prod')
        assert np.array_equal(first_row(chunk), state)
    # the cancelled one never reached the policy
    assert len(router_rig.steering('one').events('predict')) == 2
    assert UNANSWERED not in router_rig.drops()


@both_links
def test_streaming_robots_and_goals_are_served_side_by_side(router_rig, caller):
    router_rig.slots()
    robots = [router_rig.robot(f'robot_{number}') for number in range(2)]
    for number in range(15):
        state = STATE + number
        goals = [caller.predict(asking(f'goal-{number}-{i}', -state)) for i in range(3)]
        for robot in robots:
            chunk = robot.round_trip(state=state[None])
            assert chunk.status == Status.OK
            assert np.array_equal(chunk.robot[0], state)
        for goal in goals:
            status, chunk = goal.result()
            assert status == SUCCEEDED
            assert np.array_equal(first_row(chunk), -state)
    assert not router_rig.drops()


def test_a_router_that_ends_while_goals_wait_tells_them_and_exits_cleanly(router_rig, caller):
    turns = router_rig.steering('one').turns
    turns.close_gate()
    router_rig.server('one', 'prod')
    process = router_rig.router(slot_prod=['one'])
    router_rig.wait_for_health('healthy')
    goals = [caller.predict(asking()) for _ in range(2)]
    router_rig.wait(lambda: router_rig.steering('one').events('predict'), 'the policy works')
    process.terminate()
    for goal in goals:
        status, chunk = goal.result()
        assert (status, chunk.status) == (ABORTED, Status.DRAINING)
        assert 'draining' in chunk.status_text
    assert process.wait(ENDS_S) == 0
    log = router_rig.log('router')
    assert 'Traceback' not in log
    assert 'did not end' not in log


def thread_count(pid: int) -> int:
    return len(os.listdir(f'/proc/{pid}/task'))


def test_a_router_that_takes_no_requests_says_so_and_keeps_nothing(router_rig, caller):
    router_rig.server('one', 'prod')
    process = router_rig.router(slot_prod=['one'], autostart=False)
    chunk = refused(caller)
    assert (chunk.status, 'configure' in chunk.status_text) == (Status.DRAINING, True)
    status_topic = '/one/policy_server/predict_chunk/_action/status'
    # before it is configured, where no thread starts by and by
    first = thread_count(process.pid)
    for _ in range(4):
        for transition in ('configure', 'activate'):
            assert caller.change_state(transition)
        router_rig.wait_for_health('healthy')
        assert answered(caller).slot == 'prod'
        assert caller.change_state('deactivate')
        assert 'activate' in refused(caller).status_text
        assert caller.change_state('cleanup')
        router_rig.wait(
            lambda: router_rig.node.count_subscribers(status_topic) == 0, 'no client is left'
        )
        # one that carried out a transition may still be ending
        router_rig.wait(lambda: thread_count(process.pid) <= first, 'no thread is left behind')
    process.terminate()
    assert process.wait(ENDS_S) == 0
