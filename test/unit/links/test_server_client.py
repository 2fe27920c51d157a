# SPDX-License-Identifier: Apache-2.0
"""The client of a server, over a link without a network and a local path in this process."""

from __future__ import annotations

import threading
import time

import pytest

from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.records import (
    CloseSessionResponse,
    Extension,
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
    ResetEpisodeResponse,
)
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.links.fake import FakeLink, FakeReplies
from lerobot_serve.links.link import LinkCallbacks, Presence
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.local.offer import encode as encode_offer
from lerobot_serve.local.offer import KEY, Offer, TOKEN_BYTES
from lerobot_serve.local.path import LocalPath, OnGone

ASK = OpenSessionRequest(client_id='robot', session_epoch=1)
ANNOUNCED = ResetEpisodeRequest('robot')


def client_of(link: FakeLink) -> ServerClient:
    return ServerClient(link, FakeReplies())


def answer(response: object) -> FakeLink:
    """Return a link whose server answers every call alike."""
    raw = response if isinstance(response, bytes) else encode(response)
    names = ('open_session', 'close_session', 'reset_episode', 'get_status')
    return FakeLink(dict.fromkeys(names, lambda _: raw))


def test_a_reply_of_another_version_is_no_server():
    client, refused = client_of(answer(b'?')), []
    with pytest.raises(ServerUnreachable, match='both ends need the same version') as error:
        client.status(1.0)
    assert str(error.value).startswith('/policy_server, get_status: ')
    client.announce(ANNOUNCED, refused.append)
    assert 'no ResetEpisodeResponse' in refused[0]
    with pytest.raises(ServerUnreachable, match='the same version'):
        client.open(ASK, 1.0)


@pytest.mark.parametrize('known', [True, False])
def test_a_session_that_is_not_opened_has_a_reason(known):
    code = Refusal.CAPACITY if known else 250
    with pytest.raises(SessionRefused) as refused:
        client_of(answer(OpenSessionResponse(code=code))).open(ASK, 1.0)
    assert refused.value.code is (Refusal.CAPACITY if known else Refusal.NOT_READY)
    assert 'the same version' in str(refused.value)


def test_an_announcement_replaces_the_one_before_and_ends_with_the_session():
    link = answer(CloseSessionResponse(True))
    link.services['reset_episode'] = lambda _: None
    client = client_of(link)
    for _ in range(3):
        for name in ('robot', 'other'):
            client.announce(ResetEpisodeRequest(name), lambda _: None)
    assert link.pending == ['reset_episode'] * 2
    assert client.close(ASK, 1.0).closed
    assert link.pending == ['reset_episode']


def test_a_probe_replaces_the_one_before():
    link = answer(b'')
    link.services['get_status'] = lambda _: None
    client = client_of(link)
    for _ in range(3):
        client.probe(lambda: None)
    assert link.pending == ['get_status']


def test_an_acknowledged_episode_is_not_refused():
    refused: list[str] = []
    client_of(answer(ResetEpisodeResponse(True))).announce(ANNOUNCED, refused.append)
    assert not refused


def test_a_wait_for_the_server_ends_with_the_process_or_its_time():
    link, stop = answer(b''), threading.Event()
    client = ServerClient(link, FakeReplies(), stop)
    assert client.wait_until_matched(1.0)
    link.is_there = False
    assert not client.wait_until_matched(0.01)
    stop.set()
    begin_s = time.monotonic()
    assert not client.wait_until_matched(60.0)
    assert time.monotonic() - begin_s < 30.0


class Path(LocalPath):
    """A local path that a test connects."""

    def __init__(self, on_chunk: object, on_gone: OnGone) -> None:
        super().__init__(on_chunk, on_gone, lifespan_s=1.0)
        self.on_gone, self.sent, self.is_open, self.offers = on_gone, [], True, []

    def use(self, offer: Offer) -> None:
        self.offers.append(offer)

    def send(self, raw: bytes) -> bool:
        if self.is_open:
            self.sent.append(raw)
        return self.is_open


def test_requests_take_the_local_path_and_the_link_around_it():
    link = answer(b'')
    client = client_of(link)
    client.send(b'before it listens')
    client.listen(LinkCallbacks(lambda _: None), Path)
    client.send(b'locally')
    client.local.is_open = False
    client.send(b'around')
    assert client.local.sent == [b'locally']
    assert link.sent == [b'before it listens', b'around']


def test_an_offer_is_used_by_one_session_and_hidden_from_both():
    offer = Offer('@address', bytes(TOKEN_BYTES), 1)
    offered = Extension(KEY, encode_offer(offer))
    client = client_of(answer(OpenSessionResponse(accepted=True, extensions=(offered,))))
    client.listen(LinkCallbacks(lambda _: None), Path)
    for locally in (True, False):
        assert client.open(ASK, 1.0, locally=locally).extensions == ()
    assert client.local.offers == [offer]


@pytest.mark.parametrize('reports_goodbye', [True, False])
def test_a_server_that_the_local_path_loses_is_gone_and_says_goodbye_once(reports_goodbye):
    link, presences = answer(b''), []
    link.reports_goodbye = reports_goodbye
    client = client_of(link)
    client.listen(LinkCallbacks(lambda _: None, on_presence=presences.append), Path)
    client.local.on_gone(False)
    assert presences == ([] if reports_goodbye else [Presence.CLOSED])
    client.local.on_gone(True)
    assert presences[-1] is Presence.GONE
    link.go()
    link.come_back()
    assert presences[-2:] == [Presence.GONE, Presence.THERE]
