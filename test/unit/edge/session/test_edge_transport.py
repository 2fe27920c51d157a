# SPDX-License-Identifier: Apache-2.0
"""The way to the outside: sessions as servers see them."""

from __future__ import annotations

from dataclasses import replace
import math
from types import SimpleNamespace

import numpy as np
import pytest
from support.edge.edge_transport_rig import ROBOT, seen, worlds

from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services import action_range
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.edge.robot.units import convert_between

GONE = ServerUnreachable('no answer')


@pytest.fixture
def world():
    with worlds() as make:
        yield make


def test_a_session_is_what_the_server_agreed_to(world):
    there = world()
    there.a.warnings = ('fps is 30, the policy learned 50',)
    agreement = there.open_session('/a', 9)
    ((name, ask),) = there.a.calls
    assert (name, ask.session_epoch, ask.action_names) == ('open', 9, ('pan.pos',))
    assert (agreement.schema_version, agreement.chunk_size) == (1, 50)
    assert (agreement.observation_steps, agreement.observation_stride_steps) == (2, 3)
    assert agreement.supports_rtc
    assert there.told == [
        'fps is 30, the policy learned 50',
        'session s-1 opened with /a, policy act@0',
    ]
    assert there.b.calls == []


def test_a_chunk_that_is_shorter_than_the_buffer_is_told(world):
    there = world(request_threshold_s=5.0, max_action_age_s=9.0)
    there.open_session('/a', 9)
    assert 'without a pause' in there.told[0]


def test_topics_that_are_not_found_are_told_and_no_reason_to_give_up(world):
    there = world()
    there.a.wired = False
    there.open_session('/a', 9)
    assert 'first requests may be lost' in there.told[0]
    there.transport.send(b'request')
    assert there.a.calls[-1] == ('send', b'request')


@pytest.mark.parametrize('error', [GONE, SessionRefused(Refusal.CAPACITY, 'full')])
def test_who_does_not_open_a_session_has_the_requester_know(world, error):
    there = world()
    there.a.error = error
    with pytest.raises(type(error)):
        there.open_session('/a', 9)
    assert there.told == []
    # there is none to leave
    there.transport.close_session()
    assert [call[0] for call in there.a.calls] == ['open']


def test_requests_go_to_the_server_whose_session_is_open(world):
    there = world()
    there.open_session('/a', 9)
    there.open_session('/b', 10)
    there.transport.send(b'request')
    assert there.b.calls[-1] == ('send', b'request')
    assert [call[0] for call in there.a.calls] == ['open']


def test_to_leave_says_which_session_and_only_once(world):
    there = world()
    there.open_session('/a', 9)
    there.transport.close_session()
    there.transport.close_session()
    assert [call[0] for call in there.a.calls] == ['open', 'close']
    assert there.a.calls[1][1].session_epoch == 9


def test_to_leave_a_server_that_is_gone_is_nothing_to_speak_of(world):
    there = world()
    there.open_session('/a', 9)
    told = list(there.told)
    there.a.error = GONE
    there.transport.close_session()
    assert there.told == told


def test_an_episode_is_told_with_its_number_and_name(world):
    there = world()
    there.open_session('/a', 9)
    there.transport.reset_episode(9, 4, 'fold-4')
    _, request = there.a.calls[-1]
    assert (request.client_id, request.session_epoch) == ('robot_1', 9)
    assert (request.episode, request.episode_id) == (4, 'fold-4')


def test_an_episode_that_a_server_does_not_begin_is_told_to_operators(world):
    there = world()
    there.open_session('/a', 9)
    there.a.refusal = 'no session of epoch 9'
    there.transport.reset_episode(9, 4, 'fold-4')
    assert (
        there.told[-1] == "server rejected the reset for episode 'fold-4': no session of epoch 9"
    )


def test_who_is_there_is_asked_of_its_own_client(world):
    there = world()
    there.b.there = False
    assert there.transport.is_available('/a')
    assert not there.transport.is_available('/b')


def told_range(most: float) -> tuple[SimpleNamespace, ...]:
    """Return what a server says of a policy whose one action was within so much in training."""
    value = action_range.encode(ActionRange((-most,), (most,)))
    return (SimpleNamespace(key=action_range.KEY, value=value),)


def test_a_policy_in_another_unit_is_refused_and_its_session_closed(world):
    there = world()
    there.a.extensions = told_range(90.0)
    with pytest.raises(
        SessionRefused, match='act@0: the range of the policy is far beyond'
    ) as refused:
        there.open_session('/a', 9)
    assert refused.value.code is Refusal.WRONG_POLICY
    assert [call[0] for call in there.a.calls] == ['open', 'close']


def test_a_policy_that_goes_a_little_beyond_is_a_warning(world):
    there = world()
    there.a.extensions = told_range(2.0)
    there.open_session('/a', 9)
    assert len(there.warned) == 1
    assert 'beyond the limits' in there.warned[0]


@pytest.mark.parametrize('value', [b'', b'{"low": [3], "high": [1]}'])
def test_a_range_that_cannot_be_read_is_told_and_no_reason_to_give_up(world, value):
    there = world()
    there.a.extensions = (SimpleNamespace(key=action_range.KEY, value=value),)
    there.open_session('/a', 9)
    assert 'units not compared' in there.told[0]


def test_a_state_leaves_in_the_unit_of_the_policy(world):
    units = {'p': convert_between('rad', 'deg'), 't': convert_between('rad', 'rad')}
    there = world(replace(ROBOT, units=units))
    states, _ = there.observe(seen(pan=math.pi / 2))
    assert states.tolist() == [[90.0, 0.25]]
    assert states.dtype == np.float32
