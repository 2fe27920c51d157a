# SPDX-License-Identifier: Apache-2.0
"""The keys of the link: one segment for each server and client, never a wildcard in a name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some
import pytest
import zenoh

from lerobot_serve.contract.names import is_own_reply_topic, is_reply_key, is_reply_topic
from lerobot_serve.errors import UserError
from lerobot_serve.zenoh.keys import check_site, client_of, Role, ServerKeys

SERVER = ServerKeys('lab-3', '/slot_a/policy_server')
texts = some.text(min_size=1, max_size=200)
epochs = some.integers(0, 2**32 - 1)
roles = some.sampled_from(Role)


def test_they_are_what_the_docs_say():
    robot, router = (SERVER.client(role, 'name') for role in Role)
    at = '@lerobot/lab-3/slot_a.policy_server'
    assert SERVER.alive == f'{at}/alive'
    assert robot.observation == f'{at}/robot/name/observation'
    assert robot.reply(0xABC) == f'{at}/robot/name/00000abc/action_chunk'
    assert router.reply(0xABC) == f'{at}/router/name/replies/00000abc'
    assert router.service('open_session') == f'{at}/router/name/service/open_session'


@given(texts, roles)
def test_any_name_of_a_client_is_one_segment_that_zenoh_takes(name, role):
    keys = SERVER.client(role, name)
    for key in (keys.alive, keys.observation, keys.no_session, keys.reply(1)):
        assert client_of(str(zenoh.KeyExpr(key))) == keys
        assert not set('*$#?') & set(key)
    assert zenoh.KeyExpr(SERVER.clients.observation).includes(keys.observation)
    assert zenoh.KeyExpr(keys.replies()).includes(keys.reply(1))


@given(texts, texts)
def test_no_two_clients_share_a_key(one, other):
    robots = [SERVER.client(Role.ROBOT, name) for name in (one, other)]
    assert (robots[0] == robots[1]) == (one == other)
    assert SERVER.client(Role.ROUTER, one) not in robots


def test_the_segment_of_a_router_is_the_name_of_its_node():
    assert SERVER.client(Role.ROUTER, '/lab/policy_router').client == 'lab.policy_router'


@given(texts, texts)
def test_a_robot_speaks_for_itself_alone_and_a_router_for_all(one, other):
    assert SERVER.client(Role.ROBOT, one).may_speak_for(other) == (one == other)
    assert SERVER.client(Role.ROUTER, one).may_speak_for(other)


@given(texts, epochs, roles)
def test_a_reply_key_is_a_reply_topic(name, epoch, role):
    keys = SERVER.client(role, name)
    assert is_reply_key(keys.reply(epoch))
    assert not is_reply_topic(keys.reply(epoch))
    assert is_own_reply_topic(keys.reply(epoch)) == (role is Role.ROBOT)
    assert keys.may_reply_on(keys.reply(epoch))
    assert not SERVER.client(role, name + 'x').may_reply_on(keys.reply(epoch))
    assert (
        not ServerKeys('lab-4', SERVER.server).client(role, name).may_reply_on(keys.reply(epoch))
    )


@given(texts)
def test_no_other_key_may_be_replied_on(text):
    keys = SERVER.client(Role.ROBOT, 'robot_1')
    assert not keys.may_reply_on(text)
    assert not keys.may_reply_on(f'{keys.prefix}/{text}')
    for wild in ('*', '**', '0000000*', '$*'):
        assert not keys.may_reply_on(f'{keys.prefix}/{wild}/action_chunk')


def test_the_servers_of_one_site_share_no_key():
    names = ('/a/b', '/a_b', '/ab', '/a/b/c')
    assert len({ServerKeys('x', name).prefix for name in names}) == len(names)


def test_who_subscribes_to_everything_receives_nothing_of_ours():
    robot = SERVER.client(Role.ROBOT, 'robot_1')
    assert not zenoh.KeyExpr('**').intersects(robot.observation)


@pytest.mark.parametrize('site', ['', '*', 'a/b', '@x', 'x' * 65, 'a b', '..', '-x'])
def test_a_site_is_one_word(site):
    with pytest.raises(UserError, match='zenoh_site'):
        check_site(site)
