# SPDX-License-Identifier: Apache-2.0
"""A client over Zenoh of a server that refuses, or is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.nodes.zenoh_links import free_endpoint
from support.waiting import wait_until

from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.records import (
    EpisodeOutcome,
    ReportOutcomeRequest,
    ReportOutcomeResponse,
    ResetEpisodeRequest,
)
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.links.link import LinkCallbacks
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.links.zenoh import zenoh_client
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.settings import ZenohSettings

SERVER = '/policy_server'
KEYS = ServerKeys('default', SERVER)
LIMIT_S = 20.0


@pytest.fixture
def links() -> Iterator[tuple[ZenohLink, ZenohLink]]:
    """The link of a server, and that of a client."""
    endpoint = free_endpoint()
    server = ZenohLink(ZenohSettings(listen=(endpoint,)))
    client = ZenohLink(ZenohSettings(connect=(endpoint,)))
    yield server, client
    client.close()
    server.close()


@pytest.fixture
def connect(links):
    """Gives a client of a server that answers every call as a function does."""
    server, mine = links
    declared = []

    def start(on_query) -> ServerClient:
        served = server.serve(KEYS.clients.service('*'), on_query)
        # last: a client that sees it finds the services
        token = server.declare_alive(KEYS.alive)
        made = zenoh_client(mine, SERVER, Role.ROBOT, 'robot')
        made.listen(LinkCallbacks(lambda _: None))
        wait_until(made.is_available, 'the server is there')
        declared.extend((made.end, token.undeclare, served.undeclare))
        return made

    yield start
    for undeclare in declared:
        undeclare()


def refuse(query) -> None:
    with query:
        query.reply_err(b'not you')


def announced(client: ServerClient) -> str:
    """Announce an episode; return how it was refused."""
    refused: list[str] = []
    client.announce(ResetEpisodeRequest('robot'), refused.append)
    wait_until(lambda: refused, 'the refusal arrives')
    return refused[0]


@pytest.mark.parametrize(
    ('is_there', 'why'), [(True, 'no reply within 0.3 s'), (False, 'not run')]
)
def test_a_server_that_does_not_reply_is_named_without_a_key(connect, links, is_there, why):
    waiting = []
    client = connect(waiting.append)
    if not is_there:
        links[0].close()
        wait_until(lambda: not client.is_available(), 'the server has gone')
    with pytest.raises(ServerUnreachable, match=why) as refused:
        client.status(0.3)
    assert str(refused.value).startswith('/policy_server, get_status: ')
    assert '@lerobot' not in str(refused.value)
    for query in waiting:
        query.drop()


def test_a_refusal_arrives_in_its_words(connect):
    client = connect(refuse)
    with pytest.raises(ServerUnreachable, match='not you'):
        client.status(LIMIT_S)
    assert announced(client) == 'not you'


def test_a_failed_report_of_an_outcome_is_no_decision_and_can_be_repeated(connect):
    """The router was too busy, or is not configured yet: the robot reports again."""
    calls, decisions = [], []

    def on_query(query) -> None:
        calls.append(str(query.key_expr))
        with query:
            if len(calls) == 1:
                query.reply_err(b'too many calls at once')
            else:
                reply = ReportOutcomeResponse(True, 'counts')
                query.reply(query.key_expr, encode(reply))

    client = connect(on_query)
    request = ReportOutcomeRequest(EpisodeOutcome(episode_id='one', client_id='robot'))
    for number in (1, 2):
        client.report_outcome(request, lambda *decision: decisions.append(decision))
        wait_until(lambda number=number: len(calls) == number, 'the router has it', LIMIT_S)
    wait_until(lambda: decisions, 'the decision', LIMIT_S)
    assert decisions == [(True, 'counts')]
