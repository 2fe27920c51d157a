# SPDX-License-Identifier: Apache-2.0
"""A verb acts in the state that was confirmed; its question, its numbers, its exit statuses."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
import contextlib
import io
import json
import re

import pytest
from support.paths import REPOSITORY
from support.tools.loading_fleet import LoadingFleet
from support.tools.operator_states import canary_of, changed, replica_of, router_of, slot_of

from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.operator_options import Operator
from lerobot_serve.tools.cli.signature import number, print_report
from lerobot_serve.tools.operate import fleet_client, outcome
from lerobot_serve.tools.operate.fleet_state import RouterView
from lerobot_serve.tools.operate.outcome import NotReached, Result, ResultUnknown, unconfirmed_text
from lerobot_serve.tools.output.report import Report

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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ask(monkeypatch, answer: str, *, yes: bool = False, asks: bool = True) -> None:
    monkeypatch.setattr('sys.stdin', Terminal(answer))
    Operator(yes=yes).confirm('/policy_router', 'roll back v2', asks=asks)


@pytest.mark.parametrize('answer', ['y\n', 'YES\n'])
def test_a_yes_continues(monkeypatch, capsys, answer):
    ask(monkeypatch, answer)
    shown = capsys.readouterr()
    assert shown.err == '/policy_router: will roll back v2\nContinue? [y/N] '
    assert not shown.out


@pytest.mark.parametrize('answer', ['', '\n', 'n\n', 'yo\n'])
def test_everything_else_changes_nothing(monkeypatch, answer):
    with pytest.raises(UserError, match='nothing was changed'):
        ask(monkeypatch, answer)


@pytest.mark.parametrize('given', [{'yes': True}, {'asks': False}])
def test_nothing_is_asked(monkeypatch, capsys, given):
    ask(monkeypatch, 'n\n', **given)
    assert 'Continue' not in capsys.readouterr().err


def test_without_a_terminal_a_yes_is_needed(monkeypatch):
    monkeypatch.setattr('sys.stdin', io.StringIO('y\n'))
    with pytest.raises(WrongCommandLine, match='add --yes') as raised:
        Operator().confirm('/policy_router', 'roll back v2', asks=True)
    assert raised.value.exit_status == 2


def test_a_closed_standard_input_is_no_terminal(monkeypatch):
    monkeypatch.setattr('sys.stdin', None)
    with pytest.raises(WrongCommandLine, match='add --yes'):
        Operator().confirm('/policy_router', 'roll back v2', asks=True)


@pytest.mark.parametrize('given', ['0', '-1', 'soon', 'nan', 'inf', '3601'])
def test_a_wrong_number(given):
    with pytest.raises(ArgumentTypeError, match=r'must be in \(0, 3600\] s, got'):
        number('s', 3600.0)(given)


@pytest.mark.parametrize(('given', 'parsed'), [('0', 0.0), ('3600', 3600.0), ('1e-3', 0.001)])
def test_a_number_within_its_bounds(given, parsed):
    assert number('s', 3600.0, includes_least=True)(given) == parsed


PAGE = (REPOSITORY / 'docs' / 'operate.md').read_text()


def test_the_page_and_the_module_list_the_same_statuses():
    listed = re.findall(r'^\| (\d+) \| ', PAGE, re.MULTILINE)
    assert listed == ['0', '1', '2', '3', '4', '130']
    for status in listed:
        assert re.search(rf'\b{status} ', outcome.__doc__), status
    assert str(outcome.EXIT_UNKNOWN) in listed


def test_a_node_that_was_not_reached_is_an_error_of_the_user():
    assert issubclass(NotReached, UserError)
    assert not issubclass(ResultUnknown, UserError)


@pytest.mark.parametrize(
    ('accepted', 'known'),
    [('', '/r did not reply, so it may have run or not'), ('yes', '/r accepted it (yes), so')],
)
def test_an_unknown_result_says_what_is_known(accepted, known):
    text = unconfirmed_text('/r', 'split', accepted=accepted, last='80 % to slot a', age_s=1.25)
    assert text.startswith('UNKNOWN: split was sent; ' + known)
    assert 'Last known, 1.2 s ago: 80 % to slot a' in text


def test_the_operator_is_named_where_something_was_done():
    changed = Result('split', '/r', '80 %', 'kim@lab', ['split: 70 % -> 80 %'])
    assert changed.report().as_text() == '/r: 80 %\n  split: 70 % -> 80 %\n  by kim@lab'
    # what no state shows, for example a reset
    done = Result('reset', '/r', 'The next episode starts', 'kim@lab')
    assert done.report().as_text() == '/r: The next episode starts\n  by kim@lab'
    assert Result('split', '/r', 'nothing to do').report().as_text() == '/r: nothing to do'


@pytest.mark.parametrize('name', ['drain', 'outcome', 'restore', 'robot', 'rollout', 'split'])
def test_every_verb_that_changes_something_names_its_statuses(name):
    from lerobot_serve.tools.cli.installed_verbs import installed_verbs

    assert operator_options.EXIT_STATUSES in installed_verbs()[name].load().EXAMPLE


def test_json_of_a_number_that_is_none_is_null(capsys):
    report = Report({'a': float('nan'), 'b': [{'c': float('inf')}, (1.5,)]}, [])
    assert print_report(report, Namespace(json=True)) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        'a': None,
        'b': [{'c': None}, [1.5]],
    }


@pytest.mark.parametrize('words', [('robots',), ('rollout', 'status'), ('audit', 'nowhere')])
def test_a_refusal_is_json_too(monkeypatch, capsys, words):
    monkeypatch.setattr(fleet_client.FleetClient, 'find_routers', lambda *_: [])
    monkeypatch.setattr(fleet_client.FleetClient, 'find_robots', lambda *_: [])
    assert main([*words, '--json']) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert set(found) == {'error', 'exit_status'}
    assert (
        found['exit_status'] == 1 and f'lerobot-serve {words[0]}: {found["error"]}' in printed.err
    )
