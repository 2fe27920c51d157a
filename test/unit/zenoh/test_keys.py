# SPDX-License-Identifier: Apache-2.0
"""The keys of the link: one segment for each server and client, never a wildcard in a name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some
import pytest
import zenoh

from lerobot_serve.errors import UserError
from lerobot_serve.wire.names import is_own_reply_topic, is_reply_topic
from lerobot_serve.zenoh.keys import check_site, client_segment, ServerKeys

SERVER = ServerKeys('lab-3', '/slot_a/policy_server')
texts = some.text(min_size=1, max_size=200)


def test_they_are_what_the_docs_say():
    client = SERVER.client('robot_1')
    assert SERVER.alive == '@lerobot/lab-3/slot_a.policy_server/alive'
    assert client.observation == '@lerobot/lab-3/slot_a.policy_server/robot_1/observation'
    assert client.action_chunk(0xABC).endswith('/robot_1/00000abc/action_chunk')
    assert client.service('open_session').endswith('/robot_1/service/open_session')


@given(texts)
def test_any_name_of_a_client_is_one_segment_that_zenoh_takes(name):
    keys = SERVER.client(name)
    for key in (keys.alive, keys.observation, keys.no_session, keys.action_chunk(1)):
        assert client_segment(str(zenoh.KeyExpr(key))) == client_segment(keys.alive)
        assert not set('*$#?') & set(key)
    assert zenoh.KeyExpr(SERVER.clients.observation).includes(keys.observation)
    assert zenoh.KeyExpr(SERVER.clients.action_chunks).includes(keys.action_chunk(1))


@given(texts, texts)
def test_no_two_clients_share_a_key(one, other):
    same = SERVER.client(one) == SERVER.client(other)
    assert same == (one == other)


@given(texts, some.integers(0, 2**32 - 1))
def test_a_reply_key_is_a_reply_topic_of_one_client(name, epoch):
    key = SERVER.client(name).action_chunk(epoch)
    assert is_reply_topic(key)
    assert is_own_reply_topic(key)


def test_the_servers_of_one_site_share_no_key():
    names = ('/a/b', '/a_b', '/ab', '/a/b/c')
    assert len({ServerKeys('x', name).prefix for name in names}) == len(names)


def test_who_subscribes_to_everything_receives_nothing_of_ours():
    assert not zenoh.KeyExpr('**').intersects(SERVER.client('robot_1').observation)


@pytest.mark.parametrize('site', ['', '*', 'a/b', '@x', 'x' * 65, 'a b', '..', '-x'])
def test_a_site_is_one_word(site):
    with pytest.raises(UserError, match='zenoh_site'):
        check_site(site)
