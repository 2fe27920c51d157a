# SPDX-License-Identifier: Apache-2.0
"""The exit statuses of the verbs are those of docs/operate.md; a lost reply has its own."""

from __future__ import annotations

from argparse import Namespace
import json
import re

import pytest
from support.paths import REPOSITORY

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli import operator_options
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.signature import print_report
from lerobot_serve.tools.operate import fleet_client, outcome
from lerobot_serve.tools.operate.outcome import NotReached, Result, ResultUnknown, unconfirmed_text
from lerobot_serve.tools.output.report import Report

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
