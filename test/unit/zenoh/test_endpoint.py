# SPDX-License-Identifier: Apache-2.0
"""Whatever arrives on the keys of a server is passed on, or counted; nothing is raised."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as some
import numpy as np
from support.contract.session_request import session_request
from support.zenoh.fuzzing import altered, fuzz, segments
from support.zenoh.played_query import Query

from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header, read_envelope
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import CloseSessionRequest, ResetEpisodeRequest
from lerobot_serve.contract.schema import MsgType
from lerobot_serve.ros.contract import service_bytes
from lerobot_serve.zenoh.keys import ClientKeys, Role, ServerKeys, WITHDRAWN
from lerobot_serve.zenoh.replies import CLIENTS_LIMIT, ZenohReplyPublishers
from lerobot_serve.zenoh.server_endpoint import (
    ALL_CALLS,
    MAX_ASKED_FOR,
    ROBOT_CALLS,
    ROUTER_CALLS,
    ServerEndpoint,
)
from lerobot_serve.zenoh.settings import ZenohSettings

KEYS = ServerKeys('default', '/policy_server')
ROBOT, ROUTER = KEYS.client(Role.ROBOT, 'robot_1'), KEYS.client(Role.ROUTER, '/router')
HEADER = Header(1, 2, 3, 0, 1, MsgType.OBSERVATION)
RAW = wire_observation.encode(
    Observation(HEADER, 'robot_1', 'episode-1', np.zeros((1, 6), np.float32))
)
CHUNK = Chunk(HEADER.for_reply(0), 'robot_1', 'episode-1', robot=np.zeros((1, 6), np.float32))
NAMES = ('pan', 'tilt')
# a valid request of each service
CALLS = {
    'open_session': encode(session_request('robot_1', 3, ROBOT.reply(3), NAMES)),
    'close_session': encode(CloseSessionRequest('robot_1', 3)),
    'reset_episode': encode(ResetEpisodeRequest('robot_1', 3)),
    'get_status': b'',
    'predict_chunk': RAW,
}


class Link:
    """Takes what an endpoint declares; the test calls it as Zenoh would."""

    settings = ZenohSettings()

    def __init__(self) -> None:
        self.subscribed: dict[str, object] = {}
        self.served: dict[str, object] = {}
        self.sent: list[str] = []

    def put(self, key, raw, traffic):
        self.sent.append(key)
        return True

    def subscribe(self, key, on_payload):
        self.subscribed[key] = on_payload

    def serve(self, key, on_query):
        self.served[key] = on_query

    def publisher(self, key, traffic):
        return SimpleNamespace(put=lambda raw: None)

    def declare_alive(self, key):
        return None

    def watch_alive(self, key, on_presence):
        self.on_presence = on_presence


class Endpoint:
    """A server's endpoint, and what became of what it received."""

    def __init__(self) -> None:
        self.link, self.passed, self.dropped, self.work = Link(), [], [], []
        self.logged: list[str] = []
        self.endpoint = ServerEndpoint(
            self.link,
            '/policy_server',
            dict.fromkeys(service_bytes.SERVICES, lambda request, response: response),
            service_bytes,
            run=self.work.append,
            on_observation=self.passed.append,
            on_drop=self.dropped.append,
            log_warning=self.logged.append,
        )
        # key -> what replies to a request that waits for the policy
        self.waiting: dict[str, object] = {}
        self.is_broken, self._numbers = False, itertools.count()
        self.endpoint.serve_predictions(self._submit, self._withdraw)

    def _submit(self, raw: bytes, reply) -> str:
        if self.is_broken:
            raise RuntimeError('no policy')
        key = f'predict_chunk#{next(self._numbers)}'
        self.waiting[key] = reply
        return key

    def _withdraw(self, key: str) -> bool:
        return self.waiting.pop(key, None) is not None

    def execute(self) -> None:
        """Run the calls that wait for the executor."""
        while self.work:
            asyncio.run(self.work.pop(0)())

    def observe(self, key: str, raw: bytes) -> None:
        self.link.subscribed[KEYS.clients.observation](key, raw)

    def call(self, service: str, key: str, raw: bytes) -> Query:
        query = Query(key, raw)
        self.link.served[KEYS.clients.service(service)](query)
        return query


roles = some.sampled_from([*Role, 'other']) | segments
payloads = some.binary(max_size=300) | altered(RAW)


@fuzz(300)
@given(roles, some.just('robot_1') | segments, payloads)
def test_each_observation_is_passed_on_or_counted(role, client, raw):
    met = Endpoint()
    key = ClientKeys(KEYS.prefix, role, client)
    met.observe(key.observation, raw)
    assert len(met.passed) + len(met.dropped) == 1
    assert met.passed in ([], [raw])
    if met.passed:
        assert key.may_speak_for(read_envelope(raw).client_id)


def test_who_asks_for_a_robot_is_refused_in_its_place():
    met = Endpoint()
    met.endpoint.publish_no_session('robot_1', b'never asked')
    for client in (ROUTER, ROBOT):
        met.observe(client.observation, RAW)
        met.endpoint.publish_no_session('robot_1', b'no session')
        met.endpoint.publish_no_session('robot_2', b'no session')
    other = KEYS.client(Role.ROBOT, 'robot_2')
    assert met.link.sent == [
        ROBOT.no_session,
        ROUTER.no_session,
        other.no_session,
        ROBOT.no_session,
        other.no_session,
    ]


def test_who_asks_is_remembered_for_the_newest_clients_only():
    met = Endpoint()
    for number in range(MAX_ASKED_FOR + 1):
        name = f'caller_{number}'
        raw = wire_observation.encode(
            Observation(HEADER, name, 'episode-1', np.zeros((1, 6), np.float32))
        )
        met.observe(ROUTER.observation, raw)
    met.endpoint.publish_no_session('caller_0', b'no session')
    met.endpoint.publish_no_session(name, b'no session')
    assert met.link.sent == [
        KEYS.client(Role.ROBOT, 'caller_0').no_session,
        ROUTER.no_session,
    ]


@fuzz(550)
@given(
    some.just(Role.ROBOT) | roles,
    some.just('robot_1') | segments,
    some.sampled_from(sorted({*CALLS, *service_bytes.SERVICES})),
    some.data(),
)
def test_each_call_of_any_key_is_run_or_refused_in_words(role, client, service, data):
    met, key = Endpoint(), ClientKeys(KEYS.prefix, role, client)
    known = altered(CALLS[service]) if service in CALLS else some.nothing()
    raw = data.draw(known | some.binary(max_size=200))
    query = met.call(service, key.service(service), raw)
    assert len(met.work) + len(query.errors) == 1
    assert len(met.dropped) == len(query.errors) == len(met.logged)


def test_a_robot_speaks_for_itself_alone():
    met = Endpoint()
    met.observe(ROBOT.observation, RAW)
    met.observe(ROUTER.observation, RAW)
    assert met.passed == [RAW, RAW]
    met.observe(KEYS.client(Role.ROBOT, 'robot_2').observation, RAW)
    assert (len(met.passed), met.dropped) == (2, ['wrong_client'])


def test_a_call_for_another_robot_is_refused():
    met, raw = Endpoint(), encode(CloseSessionRequest('robot_1', 3))
    for client in (ROBOT, ROUTER):
        assert not met.call('close_session', client.service('close_session'), raw).errors
    other = KEYS.client(Role.ROBOT, 'robot_2')
    (said,) = met.call('close_session', other.service('close_session'), raw).errors
    assert b"client_id is 'robot_1'" in said
    (said,) = met.call('predict_chunk', other.service('predict_chunk'), RAW).errors
    assert b'speaks for itself alone' in said
    assert (len(met.work), met.dropped) == (2, ['malformed_service_request'] * 2)


def test_a_call_of_another_layout_is_named_with_its_remedy():
    """A field of a later version before all others."""
    raw = CALLS['open_session']
    met, key = Endpoint(), ROBOT.service('open_session')
    (said,) = met.call('open_session', key, raw[:4] + b'\xff' * 8 + raw[4:]).errors
    assert b'both ends need the same version of lerobot_serve' in said
    (logged,) = met.logged
    assert "'robot robot_1' over Zenoh: open_session: the request cannot be read" in logged
    # a client repeats it
    met.call('open_session', key, b'?')
    assert len(met.dropped) == 2 and len(met.logged) == 1


def test_a_client_that_floods_with_calls_takes_a_bounded_number_of_places():
    """Of 10,000 calls while the executor is busy, those above the limit are refused, counted."""
    met, key = Endpoint(), ROBOT.service('get_status')
    refused = [query for _ in range(10_000) if (query := met.call('get_status', key, b'')).errors]
    assert len(met.work) == ROBOT_CALLS
    assert len(refused) == met.dropped.count('too_many_calls') == 10_000 - ROBOT_CALLS
    assert b'call again' in refused[0].errors[0]
    # one line in the log for all of them
    assert len(met.logged) == 1 and 'too many calls at once' in met.logged[0]
    # others still get a place
    assert not met.call('get_status', ROUTER.service('get_status'), b'').errors


def test_a_call_that_ended_gives_its_place_back():
    met, key = Endpoint(), ROBOT.service('get_status')
    for _ in range(3):
        queries = [met.call('get_status', key, b'') for _ in range(ROBOT_CALLS)]
        assert met.call('get_status', key, b'').errors
        met.execute()
        assert all(len(query.replies) == 1 for query in queries)


PREDICT = ROBOT.service('predict_chunk')


def predictions_of(met: Endpoint, count: int) -> list[Query]:
    """Return calls of a robot that the executor has run; the policy has not."""
    queries = [met.call('predict_chunk', PREDICT, RAW) for _ in range(count)]
    met.execute()
    return queries


def test_a_prediction_keeps_its_place_until_it_has_its_reply():
    """A robot takes no more places than its own of those that wait for the policy."""
    met = Endpoint()
    for number in range(3):
        queries = [query for _ in range(5) for query in predictions_of(met, 20)]
        refused = [query for query in queries if query.errors]
        assert len(met.waiting) == ROBOT_CALLS
        assert len(refused) == 100 - ROBOT_CALLS
        assert met.dropped.count('too_many_calls') == (number + 1) * len(refused)
        while met.waiting:
            met.waiting.popitem()[1](CHUNK)
        assert sum(len(query.replies) for query in queries) == ROBOT_CALLS
    assert not met.endpoint._prediction_places._taken


def test_a_prediction_that_is_withdrawn_gives_its_place_back():
    met, withdraw = Endpoint(), ROBOT.service('withdraw')
    for _ in range(3 * ROBOT_CALLS):
        (query,) = predictions_of(met, 1)
        withdrawal = met.call('withdraw', withdraw, b'goal')
        met.execute()
        assert withdrawal.replies == [WITHDRAWN] and not query.errors
    assert not met.waiting and not met.endpoint._prediction_places._taken


def test_a_prediction_that_fails_or_is_refused_at_once_gives_its_place_back_once():
    met = Endpoint()
    met.is_broken = True
    for query in predictions_of(met, ROBOT_CALLS):
        assert query.errors == [b'predict_chunk: no policy']
    met.is_broken = False
    assert not met.endpoint._prediction_places._taken

    def refuse(raw, reply) -> str:
        reply(CHUNK)
        raise RuntimeError('after its reply')

    met.endpoint.serve_predictions(refuse, lambda key: False)
    met.call('predict_chunk', PREDICT, RAW)
    waiting = met.work.pop()
    predictions_of(met, ROBOT_CALLS - 1)
    assert met.endpoint._prediction_places._taken == {ROBOT: 1}
    asyncio.run(waiting())
    assert not met.endpoint._prediction_places._taken


def test_predictions_that_wait_keep_no_client_from_its_services():
    met = Endpoint()
    predictions_of(met, 2 * ROBOT_CALLS)
    assert len(met.waiting) == ROBOT_CALLS
    status = met.call('get_status', ROBOT.service('get_status'), b'')
    withdrawal = met.call('withdraw', ROBOT.service('withdraw'), b'goal')
    met.execute()
    assert len(status.replies) == 1 and withdrawal.replies == [WITHDRAWN]
    assert len(met.waiting) == ROBOT_CALLS - 1


def test_all_clients_together_have_a_limit():
    met = Endpoint()
    routers = [KEYS.client(Role.ROUTER, f'/router_{number}') for number in range(3)]
    for client in (*routers, *(KEYS.client(Role.ROBOT, f'robot_{n}') for n in range(50))):
        for _ in range(ALL_CALLS):
            met.call('get_status', client.service('get_status'), b'')
    assert len(met.work) == ALL_CALLS == 2 * ROUTER_CALLS


def test_tokens_of_any_number_of_clients_are_bounded():
    link, dropped = Link(), []
    replies = ZenohReplyPublishers(link, KEYS)
    replies.on_drop = dropped.append
    for number in range(CLIENTS_LIMIT + 10):
        link.on_presence(KEYS.client(Role.ROBOT, f'robot_{number}').alive, True)
    assert dropped == ['too_many_clients'] * 10
    # one that goes makes a place
    link.on_presence(KEYS.client(Role.ROBOT, 'robot_0').alive, False)
    link.on_presence(ROBOT.alive, True)
    assert len(dropped) == 10
