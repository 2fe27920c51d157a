# SPDX-License-Identifier: Apache-2.0
"""Who may ask a policy server, for how long, and what the others hear."""

from __future__ import annotations

import subprocess
import sys

from msgspec.structs import replace
import numpy as np
import pytest
from support.nodes.zenoh_links import every_link
from support.paths import module_environment

from lerobot_serve.contract.schema import Refusal, Status
from lerobot_serve.tools.processes import end_with_parent


@every_link
def test_a_chunk_of_an_old_session_never_reaches_the_new_one(rig):
    rig.steering.turns.close_gate()
    rig.start(policy_kind='steered')
    client = rig.client()
    client.request()
    rig.wait_for_events('predict')
    client.ask = replace(client.ask, session_epoch=2)
    assert client.open().session_epoch == 2
    rig.steering.turns.open_gate()
    rig.wait_for_drop('session_closed')
    # what comes next on the same topic is the new session's
    chunk = client.round_trip()
    assert (chunk.status, chunk.header.session_epoch) == (Status.OK, 2)
    assert rig.steering.events('reset') == ['reset tester#00000001']
    assert rig.status().active_sessions == 1


@every_link
def test_a_robot_that_is_faster_than_the_policy_gets_its_newest_request_answered(rig):
    rig.steering.turns.close_gate()
    rig.start(policy_kind='steered')
    client, other = rig.clients(2)
    other.request()
    rig.wait_for_events('predict')
    for count in range(1, 5):
        client.request(state=np.full((1, 6), count, np.float32))
        # one at a time: the writer keeps only the newest, too
        rig.wait_for_requests(1 + count)
    rig.steering.turns.open_gate()
    chunk = client.take()
    assert (chunk.header.seq, chunk.superseded) == (4, 3)
    assert np.array_equal(chunk.robot[0], np.full(6, 4))
    assert rig.status().superseded == 3


def test_a_robot_may_come_back_and_another_of_its_name_may_not(rig):
    rig.start(policy_kind='steered', session_grace_s=30.0)
    client = rig.client()
    reply = rig.open_session(replace(client.ask, instance=2, session_epoch=9))
    assert (reply.accepted, reply.code) == (False, Refusal.NAME_IN_USE)
    for words in ("client_id 'tester' is in use by another robot", 'its own client_id', '30 s'):
        assert words in reply.reason
    assert client.round_trip().status == Status.OK
    assert rig.open_session(replace(client.ask, session_epoch=9)).accepted
    assert rig.open_session(replace(client.ask, session_epoch=9)).accepted
    client.ask = replace(client.ask, session_epoch=9)
    assert client.round_trip().header.session_epoch == 9
    assert client.close().closed
    assert rig.open_session(replace(client.ask, instance=2)).accepted


@pytest.fixture
def person(rig):
    """A robot in a process of its own, with an open session and one answer."""
    rig.start(policy_kind='steered', session_grace_s=0.5)
    command = [sys.executable, '-m', 'support.nodes.client_process', rig.name, 'victim']
    with subprocess.Popen(
        end_with_parent(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=module_environment(),
    ) as process:
        assert process.stdout.readline() == b'answered\n'
        yield process
        process.kill()


@pytest.mark.slow
def test_the_session_of_a_process_that_was_killed_is_closed(rig, person, log_of_rig):
    survivor = rig.client()
    assert rig.status().active_sessions == 2
    person.kill()
    # the lease of its participant is 5 s, in the profile that the package brings
    rig.wait_for_drop('client_gone')
    assert rig.status().active_sessions == 1
    assert rig.wait_for_events('reset') == ['reset victim#00000001']
    assert 'closed victim#00000001: client_gone' in log_of_rig('policy_server')
    # silent for longer than the grace time, but there
    assert survivor.round_trip().status == Status.OK
    assert '/victim/action_chunk' not in dict(rig.node.get_topic_names_and_types())


def test_a_robot_that_is_silent_for_too_long_has_to_open_anew(rig):
    rig.start(policy_kind='steered', session_grace_s=0.5, session_idle_s=1.0)
    client = rig.client()
    assert client.round_trip().status == Status.OK
    rig.wait_for_drop('session_idle')
    assert rig.status().active_sessions == 0
    client.request()
    rig.wait_for_drop('no_session')
    assert client.open().accepted
    assert client.round_trip().status == Status.OK
