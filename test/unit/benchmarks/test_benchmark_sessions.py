# SPDX-License-Identifier: Apache-2.0
"""A benchmark opens its sessions as an edge does: it waits for a server, not for ever."""

from __future__ import annotations

import pytest

from benchmarks.harness import client
from benchmarks.harness.client import open_when_ready
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.errors import UserError

LOADING = SessionRefused(Refusal.NOT_READY, 'loading the policy')


class Sessions:
    """Answers in turn, at last for good."""

    server = '/policy_server'

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)

    def open(self, ask: object, timeout_s: float) -> None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer


@pytest.fixture(autouse=True)
def in_haste(monkeypatch):
    monkeypatch.setattr(client, 'OPEN_RETRY_S', 0.0)


@pytest.mark.parametrize(
    'before',
    [
        (),
        (ServerUnreachable('nobody there'),),
        (ServerUnreachable('nobody there'), LOADING, LOADING),
        (SessionRefused(Refusal.UNREACHABLE, 'its server did not answer'),),
    ],
)
def test_a_server_that_is_not_ready_yet_is_asked_again(before):
    sessions = Sessions(*before, None)
    open_when_ready(sessions, object())
    assert sessions.answers == [None]


def test_what_will_never_be_is_not_asked_for_again():
    misfit = SessionRefused(Refusal.CAMERAS, 'another robot')
    with pytest.raises(SessionRefused, match='another robot'):
        open_when_ready(Sessions(misfit, None), object())


def test_a_server_that_ended_or_never_gets_ready_is_told(monkeypatch):
    with pytest.raises(UserError, match='loading the policy; see the log of /policy_server'):
        open_when_ready(Sessions(LOADING), object(), lambda: False)
    monkeypatch.setattr(client, 'READY_TIMEOUT_S', 0.0)
    with pytest.raises(UserError, match='nobody there; see the log of /policy_server'):
        open_when_ready(Sessions(ServerUnreachable('nobody there')), object())
