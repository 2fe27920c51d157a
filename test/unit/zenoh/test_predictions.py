# SPDX-License-Identifier: Apache-2.0
"""A client withdraws its own requests without a session, those that still wait."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as some
import numpy as np
import pytest
from support.zenoh.fuzzing import fuzz
from support.zenoh.played_query import Query

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import MsgType
from lerobot_serve.zenoh.keys import NOT_WITHDRAWN, Role, ServerKeys, WITHDRAWN
from lerobot_serve.zenoh.predictions import Predictions

KEYS = ServerKeys('default', '/policy_server')
ROUTER, OTHER = (KEYS.client(Role.ROUTER, name) for name in ('/router', '/other'))
CHUNK = Chunk(Header(1, 2, 3, 0, 1, MsgType.CHUNK), 'robot', 'e', robot=np.zeros((1, 6), 'f4'))


class Server:
    """A queue of requests."""

    def __init__(self) -> None:
        self.waiting: dict[str, object] = {}
        self.predictions = Predictions(self.submit, self.remove)
        # names of requests that ended
        self.ended: list[bytes] = []

    def submit(self, raw: bytes, reply) -> str:
        key = f'predict_chunk#{raw.decode()}'
        self.waiting[key] = reply
        return key

    def remove(self, key: str) -> bool:
        return self.waiting.pop(key, None) is not None

    def predict(self, client, name: bytes, raw: bytes) -> Query:
        query = Query(client.service('predict_chunk'), attachment=name)
        asyncio.run(self.predictions.predict(raw, query, lambda: self.ended.append(name)))
        return query

    def withdraw(self, client, name: bytes) -> bytes:
        query = Query(client.service('withdraw'), name)
        asyncio.run(self.predictions.withdraw(query))
        (reply,) = query.replies
        return reply


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_request_that_waits_is_withdrawn_and_has_no_reply(server):
    query = server.predict(ROUTER, b'goal#1', b'1')
    server.predict(ROUTER, b'goal#2', b'2')
    assert server.withdraw(ROUTER, b'goal#1') == WITHDRAWN
    assert list(server.waiting) == ['predict_chunk#2']
    assert not query.replies
    assert server.withdraw(ROUTER, b'goal#1') == NOT_WITHDRAWN
    assert server.ended == [b'goal#1']


def test_a_request_on_which_the_policy_works_gets_its_chunk(server):
    query = server.predict(ROUTER, b'goal#1', b'1')
    reply = server.waiting.pop('predict_chunk#1')
    assert server.withdraw(ROUTER, b'goal#1') == NOT_WITHDRAWN
    reply(CHUNK)
    assert len(query.replies) == 1
    assert server.withdraw(ROUTER, b'goal#1') == NOT_WITHDRAWN
    assert not server.predictions._waiting
    assert server.ended == [b'goal#1']


def test_a_request_with_the_name_of_another_ends_alone(server):
    """Of two requests with one name the newer one can be withdrawn."""
    for raw in (b'1', b'2'):
        server.predict(ROUTER, b'goal', raw)
    server.waiting.pop('predict_chunk#1')(CHUNK)
    assert server.ended == [b'goal']
    assert server.withdraw(ROUTER, b'goal') == WITHDRAWN
    assert server.ended == [b'goal'] * 2 and not server.waiting


def test_a_client_withdraws_nothing_of_another(server):
    server.predict(ROUTER, b'goal#1', b'1')
    assert server.withdraw(OTHER, b'goal#1') == NOT_WITHDRAWN
    assert server.waiting


@fuzz(200)
@given(some.binary(max_size=40))
def test_any_name_is_answered(name):
    assert Server().withdraw(ROUTER, name) == NOT_WITHDRAWN
