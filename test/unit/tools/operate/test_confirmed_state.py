# SPDX-License-Identifier: Apache-2.0
"""A verb acts in the state that was confirmed: the fleet continues while the operator reads."""

from __future__ import annotations

import contextlib
import io

import pytest
from support.tools.loading_fleet import LoadingFleet
from support.tools.operator_states import canary_of, changed, replica_of, router_of, slot_of

from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.operator_options import Operator
from lerobot_serve.tools.operate.fleet_state import RouterView

CANDIDATE = slot_of(
    'b',
    'v2@2',
    share_percent=5,
    replicas=(replica_of('/s1', 'READY', policy='v2@2'), replica_of('/s2', 'UNAVAILABLE')),
)
RUNNING = router_of(
    '/r',
    split_percent=95,
    slots=(slot_of('a', 'v1@1', share_percent=95), CANDIDATE),
    canary=canary_of(CanaryPhase.RUNNING, 'v2@2', 'v1@1', 0, 4, 5, 'running: step 1'),
)
OFF = changed(RUNNING, canary=canary_of())
PROMOTED = changed(
    RUNNING, canary=changed(RUNNING.canary, state=CanaryPhase.PROMOTED, step=3, is_watched=True)
)


def canary(router: RouterView, **values: object) -> RouterView:
    return changed(router, canary=changed(router.canary, **values))


SENT = UserError('it was sent')
PARAMETERS = {
    '/r': {'canary.plan': ['5', '25', '50', '100']},
    '/s1': {'policy_path': '/models/v2'},
}


def client_of(router: RouterView) -> LoadingFleet:
    """Return the client of a router that refuses each command."""
    return LoadingFleet(
        router,
        # one that does not answer is not asked
        missing='/s2',
        parameters=PARAMETERS,
        replies=dict.fromkeys(('CANARY_PROMOTE', 'CANARY_STOP', 'DRAIN'), SENT),
    )


class Question(io.StringIO):
    """A terminal on which an operator reads until the router goes on to `then`, and says yes."""

    def __init__(self, client: LoadingFleet, then: RouterView) -> None:
        super().__init__()
        self._client, self._then = client, then

    def isatty(self) -> bool:
        return True

    def readline(self, *_: object) -> str:
        self._client.view = self._then
        return 'y\n'


def run(monkeypatch, client: LoadingFleet, then: RouterView, *words: str) -> int:
    monkeypatch.setattr('sys.stdin', Question(client, then))
    monkeypatch.setattr(Operator, 'client', lambda _: contextlib.nullcontext(client))
    return main([*words])


CHANGED = 'the state has changed; now it would: '


@pytest.mark.parametrize(
    ('words', 'before', 'then', 'text'),
    [
        (
            ('rollout', 'promote'),
            RUNNING,
            canary(RUNNING, step=1, share_percent=25),
            f'{CHANGED}give v2@2 50 % of new episodes (now step 2 of 4, 25 %)',
        ),
        (
            ('rollout', 'stop'),
            RUNNING,
            canary(RUNNING, candidate_policy='v3@3'),
            f'{CHANGED}remove the plan and give all new episodes to slot a, without a verdict on '
            'v3@3',
        ),
        (('rollout', 'start', '/models/v3'), OFF, RUNNING, 'a rollout of v2@2 has begun'),
        (
            ('rollout', 'finish'),
            PROMOTED,
            canary(PROMOTED, candidate_policy='v3@3'),
            f'{CHANGED}load v3@3 into each server',
        ),
        (('split', '50'), OFF, changed(OFF, split_percent=80), f'{CHANGED}give 50 % of'),
        (('split', '50'), OFF, RUNNING, 'a rollout sets the split'),
        (('drain', 'b'), OFF, RUNNING, 'the rollout of v2@2 is rolled back by it'),
    ],
)
def test_a_verb_that_would_do_something_else_by_now_is_refused(
    monkeypatch, capsys, words, before, then, text
):
    client = client_of(before)
    assert run(monkeypatch, client, then, *words) == 1
    assert text in capsys.readouterr().err
    assert not client.commands


@pytest.mark.parametrize(
    ('policy', 'plan', 'says'),
    [
        (
            'v2',
            '5,25:20:60,50,100',
            'nothing to do: the rollout of v2@2 by this plan runs already',
        ),
        ('v2', '5,25:30,50,100', 'end it first: `lerobot-serve rollout stop` without a verdict'),
        ('v2', '25,100', '`lerobot-serve rollout stop`'),
        (
            '/models/v2/',
            '5,25,50,100',
            'nothing to do: the rollout of v2@2 by this plan runs already',
        ),
        ('/models/v2/', '25,100', '`lerobot-serve rollout stop`'),
        ('/models/v3', '5,25,50,100', '`lerobot-serve rollout abort` to bar its policy'),
    ],
)
def test_a_rollout_that_runs_already_is_not_started_again(monkeypatch, capsys, policy, plan, says):
    client = client_of(RUNNING)
    is_same = says.startswith('nothing')
    status = run(monkeypatch, client, RUNNING, 'rollout', 'start', policy, f'--plan={plan}')
    assert status == (0 if is_same else 1)
    output = capsys.readouterr()
    assert says in (output.out if is_same else output.err)
    assert not client.commands


def test_what_another_operator_did_meanwhile_is_done_already(monkeypatch, capsys):
    back = canary(RUNNING, state=CanaryPhase.ROLLED_BACK, text='rolled back: by ann')
    client = client_of(RUNNING)
    assert run(monkeypatch, client, back, 'rollout', 'abort') == 0
    assert 'nothing to do: rolled back: by ann' in capsys.readouterr().out
    assert not client.commands


@pytest.mark.parametrize('words', [('rollout', 'promote'), ('rollout', 'stop'), ('drain', 'b')])
def test_in_the_same_state_it_acts_whatever_was_counted(monkeypatch, capsys, words):
    client = client_of(RUNNING)
    later = canary(RUNNING, text='running: 3 more', candidate_successes=3)
    assert run(monkeypatch, client, later, *words) == 1
    assert 'it was sent' in capsys.readouterr().err
    assert len(client.commands) == 1


def test_without_a_question_the_state_is_that_of_the_start(monkeypatch, capsys):
    client = client_of(RUNNING)
    assert run(monkeypatch, client, RUNNING, 'rollout', 'promote', '--yes') == 1
    assert [command for command, _ in client.commands] == ['CANARY_PROMOTE']
    assert 'Continue' not in capsys.readouterr().err
