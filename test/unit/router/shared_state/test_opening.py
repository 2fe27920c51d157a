# SPDX-License-Identifier: Apache-2.0
"""A router waits for a state that may be there later, and for no mistake of its user."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from support.router.contexts import make_context

from lerobot_serve.router.links import ParameterSource
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.shared_state import opening
from lerobot_serve.router.storage import follower, postgres_store
from lerobot_serve.router.storage.postgres_store import is_away
from lerobot_serve.router.storage.records import StoreContent
from lerobot_serve.router.storage.store import StoreAway, StoreRefused

SAID = 'connection to server at "10.0.0.9", port 5432 failed: '


@pytest.mark.parametrize(
    ('text', 'may_come'),
    [
        ('Connection refused', True),
        ('timeout expired', True),
        ('could not translate host name "db" to address: Name or service not known', True),
        ('server closed the connection unexpectedly', True),
        ('session is read-only', True),
        ('FATAL:  the database system is starting up', True),
        ('FATAL:  the database system is shutting down', True),
        ('FATAL:  the database system is in recovery mode', True),
        ('FATAL:  sorry, too many clients already', True),
        ('FATAL:  password authentication failed for user "router"', False),
        ('FATAL:  database "fleet" does not exist', False),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.2"', False),
        ('SSL error: certificate verify failed', False),
        ('server does not support SSL, but SSL was required', False),
    ],
)
def test_which_failures_may_end_by_themselves(text: str, may_come: bool):
    assert is_away(psycopg.OperationalError(f'{SAID}{text}')) is may_come


def test_another_kind_of_error_is_none():
    assert not is_away(psycopg.ProgrammingError('syntax error'))


class Clock:
    now_ns = 0


class TestWaiting:
    """Open the state of a server that answers with each of these in turn."""

    def opened(self, monkeypatch, tmp_path, answers: list[Exception | None], waits: int):
        reasons: list[str] = []
        left = [False] * waits + [True] * 9

        def wait(why: str, seconds: float) -> bool:
            reasons.append(why)
            return left.pop(0)

        context = replace(make_context(Clock()), wait=wait)

        class Played:
            """A store that is there or not."""

            is_shared, name, content, other_sites = True, 'the state', StoreContent(), ()

            def __init__(self, *_: object) -> None:
                if error := answers.pop(0):
                    raise error

        monkeypatch.setattr(postgres_store, 'PostgresStore', Played)
        monkeypatch.setattr(follower, 'StateFollower', lambda *_: 'follower')
        parameters = RouterParameters(slot_prod=('/s',), state_url='postgresql://db/fleet')
        source = ParameterSource(parameters, parameters, lambda **_: None)
        return opening.open_state(source, tmp_path, context), reasons

    def test_it_says_why_and_goes_on_when_it_is_there(self, monkeypatch, tmp_path):
        answers = [StoreAway('refused'), StoreAway('starts'), None]
        found, reasons = self.opened(monkeypatch, tmp_path, answers, 9)
        assert (found[0].name, found[1]) == ('the state', 'follower')
        assert reasons == [f'refused; {opening.WAITS}', f'starts; {opening.WAITS}']

    def test_it_ends_when_it_is_asked_to(self, monkeypatch, tmp_path):
        with pytest.raises(StoreAway):
            self.opened(monkeypatch, tmp_path, [StoreAway('refused')] * 3, 2)

    def test_a_mistake_ends_it_at_once(self, monkeypatch, tmp_path):
        with pytest.raises(StoreRefused, match='no such database'):
            self.opened(monkeypatch, tmp_path, [StoreRefused('no such database')], 9)
