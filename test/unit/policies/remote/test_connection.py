# SPDX-License-Identifier: Apache-2.0
"""The connection to a remote server, with peers of the test: given up, and opened again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
import threading
import time
from typing import Any

import numpy as np
import pytest
from support.waiting import wait_until

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.remote import connection as tested
from lerobot_serve.policies.remote.connection import PeerConnection
from lerobot_serve.policies.remote.peer import (
    PeerChanged,
    PeerError,
    PeerObservation,
    PeerRefused,
    PeerReply,
    PeerTimeout,
    PeerUnavailable,
)

METADATA = {'model': 'v1'}
SEEN = PeerObservation(np.zeros(1, np.float32), {})
REPLY = PeerReply(np.zeros((1, 1)))
LIMIT_S = 10.0


class FakePeer:
    """A peer whose steps the test gives."""

    def __init__(self, rig: Rig) -> None:
        self._rig, self.is_closed = rig, False
        self.replies = 0

    async def connect(self) -> dict[str, Any]:
        step = self._rig.connects.pop(0) if self._rig.connects else METADATA
        if isinstance(step, Exception):
            raise step
        return step

    async def predict(self, observation: PeerObservation) -> PeerReply:
        self._rig.asked.set()
        if self._rig.hangs:
            await asyncio.sleep(LIMIT_S)
        if self._rig.error:
            raise self._rig.error
        self.replies += 1
        return REPLY

    async def close(self) -> None:
        self.is_closed = True


class Rig:
    """A connection, and the peers that it has made."""

    def __init__(self) -> None:
        self.peers: list[FakePeer] = []
        # what the next connections give, then METADATA
        self.connects: list[dict[str, Any] | Exception] = []
        self.hangs, self.error = False, None
        self.asked = threading.Event()
        self.connection = PeerConnection(
            'the server',
            self._make,
            connect_timeout_s=LIMIT_S,
            predict_timeout_s=0.2,
            select=selected,
            first_pause_s=0.01,
        )
        self.connection.start()

    def _make(self, on_lost: Callable[[str], None]) -> FakePeer:
        self.peers.append(FakePeer(self))
        return self.peers[-1]

    def predicts(self) -> bool:
        try:
            return self.connection.predict(SEEN) is REPLY
        except PeerError:
            return False


def selected(metadata: dict[str, Any]) -> dict[str, Any]:
    if 'model' not in metadata:
        raise PeerChanged("the metadata has no 'model'")
    return metadata


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.connection.close()


def test_a_request_that_is_given_up_takes_its_connection_with_it(rig, monkeypatch):
    monkeypatch.setattr(tested, 'LOOP_MARGIN_S', 0.1)
    rig.hangs = True

    def stall() -> None:
        # the process stands still beyond both limits, with a request out
        assert rig.asked.wait(LIMIT_S)
        rig.connection._loop.call_soon_threadsafe(time.sleep, 0.6)

    stalling = threading.Thread(target=stall)
    stalling.start()
    with pytest.raises(PeerTimeout, match='no result after'):
        rig.connection.predict(SEEN)
    stalling.join(LIMIT_S)
    rig.hangs = False
    wait_until(rig.predicts, 'a reply')
    first, second = rig.peers
    # a late reply of the first one reaches no later request
    assert first.is_closed and not first.replies
    assert second.replies and not second.is_closed


@pytest.mark.parametrize('error', [PeerRefused('no'), PeerChanged('other version')])
def test_a_whole_reply_that_refuses_keeps_the_connection(rig, error):
    rig.error = error
    with pytest.raises(type(error)):
        rig.connection.predict(SEEN)
    rig.error = None
    assert rig.predicts() and len(rig.peers) == 1


@pytest.mark.parametrize('error', [ValueError('of a library'), PeerUnavailable('closed')])
def test_any_other_error_opens_another_connection(rig, error):
    rig.error = error
    with pytest.raises(type(error)):
        rig.connection.predict(SEEN)
    rig.error = None
    wait_until(rig.predicts, 'a reply')
    assert rig.peers[0].is_closed and len(rig.peers) == 2


@pytest.mark.parametrize(
    'failure',
    [
        {'model': 'v2'},
        {},
        PolicyError('the TLS files cannot be used'),
        RuntimeError('of a library'),
        PeerUnavailable('refused'),
    ],
)
def test_it_connects_again_whatever_one_attempt_meets(rig, failure):
    rig.connects, rig.error = [failure], PeerUnavailable('closed')
    with pytest.raises(PeerUnavailable):
        rig.connection.predict(SEEN)
    rig.error = None
    wait_until(rig.predicts, 'a reply')
    assert [peer.is_closed for peer in rig.peers] == [True, True, False]
