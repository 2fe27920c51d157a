# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve swap`: what it does in each state of a server, and how it says how it ended."""

from __future__ import annotations

from itertools import product

import pytest
from support.tools.operator_states import changed, SERVER_NAMES, server_of

from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate import swapping
from lerobot_serve.tools.operate.outcome import NotReached, ResultUnknown
from lerobot_serve.tools.operate.rule import Effect
from lerobot_serve.tools.operate.swapping import swap_rule

Swap = ServerStatus.Swap
SERVED = server_of('/policy_server', 'ACTIVE', policy='pick@1', active_sessions=2)
LOADING = changed(SERVED, swap=Swap.LOADING, swap_text='loading /models/new beside pick@1')
DONE = changed(SERVED, policy='pick@2', swap=Swap.DONE, swap_text='pick@2 has replaced pick@1')
FAILED = changed(SERVED, swap=Swap.FAILED, swap_text='pick@1 continues: no such file')


@pytest.mark.parametrize(
    ('state', 'phase'), product((*SERVER_NAMES, 'unknown (9)'), Swap), ids=str
)
def test_only_a_server_that_serves_and_loads_nothing_swaps(state, phase):
    rule = swap_rule(changed(SERVED, state=state, swap=phase, text='why'), 'new')
    may = state == 'ACTIVE' and phase is not Swap.LOADING
    assert rule.effect is (Effect.DO if may else Effect.REFUSE)
    assert rule.asks == may
    assert '{' not in rule.text


def test_the_question_names_both_policies_and_the_sessions():
    assert swap_rule(SERVED, 'new').text == (
        'load new beside pick@1 and let it replace that policy under 2 open sessions: their next '
        'chunk is of the new policy and says so'
    )
    assert 'under 1 open session:' in swap_rule(changed(SERVED, active_sessions=1), 'new').text


class Client:
    """A server that shows these states, one after the other."""

    operator, timeout_s = 'kim@lab', 1.0

    def __init__(self, *states: ServerStatus | Exception, accepts: bool = True) -> None:
        self.states, self.accepts = list(states), accepts
        self.given: list[tuple[str, str]] = []

    def server(self, name: str) -> ServerStatus:
        found = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(found, Exception):
            raise found
        return found

    def swap_policy(self, name: str, path: str) -> tuple[bool, str]:
        self.given.append((name, path))
        return self.accepts, 'loading' if self.accepts else 'refused: not below policy_root'

    def swap_servers(self) -> list[str]:
        return ['/a/policy_server', '/b/policy_server']


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(swapping, 'POLL_S', 0.0)


def test_without_wait_it_ends_when_the_server_loads():
    client = Client(FAILED)
    found = swapping.swap(client, SERVED, 'new')
    assert (found.text, found.changes) == ('loading', [])
    assert client.given == [('/policy_server', 'new')]


def test_with_wait_it_shows_the_change_and_who_did_it():
    # a server that is busy with loading may miss a call
    client = Client(LOADING, ResultUnknown('no reply'), NotReached('not there'), DONE)
    found = swapping.swap(client, SERVED, 'new', wait_s=10.0)
    assert found.report().as_text() == (
        '/policy_server: pick@2 has replaced pick@1\n  policy: pick@1 -> pick@2\n  by kim@lab'
    )


def test_the_policy_that_is_served_is_no_change():
    same = changed(SERVED, swap=Swap.DONE, swap_text='pick@1 is served already')
    assert swapping.swap(Client(same), SERVED, 'new', wait_s=10.0).changes == []


def test_a_refusal_and_a_failure_are_errors_that_change_nothing():
    with pytest.raises(UserError, match=r'refused: not below policy_root\. Nothing was changed'):
        swapping.swap(Client(SERVED, accepts=False), SERVED, 'new')
    with pytest.raises(UserError, match='/policy_server: pick@1 continues: no such file'):
        swapping.swap(Client(LOADING, FAILED), SERVED, 'new', wait_s=10.0)


def test_a_load_that_lasts_longer_is_unknown_and_goes_on():
    with pytest.raises(ResultUnknown, match=r'UNKNOWN: .* It continues: read Server'):
        swapping.swap(Client(LOADING), SERVED, 'new', wait_s=0.0)


def test_a_wrong_server_is_answered_with_those_that_there_are():
    client = Client(NotReached('/a/policy_servr/get_status is not available'))
    with pytest.raises(NotReached) as refused:
        swapping.find_server(client, 'a/policy_servr')
    assert 'did you mean /a/policy_server?' in str(refused.value)
    assert '/a/policy_server, /b/policy_server' in str(refused.value)
    assert swapping.find_server(Client(SERVED), 'policy_server') == SERVED


def test_a_server_is_found_by_the_name_in_a_state_of_its_router():
    asked: list[str] = []
    client = Client(SERVED)
    client.server = asked.append
    for given in ('zenoh:/b/policy_server', '/b/policy_server', 'b/policy_server'):
        swapping.find_server(client, given)
    assert asked == ['/b/policy_server'] * 3
