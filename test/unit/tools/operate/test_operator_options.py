# SPDX-License-Identifier: Apache-2.0
"""The question before traffic moves, and wrong numbers."""

from __future__ import annotations

from argparse import ArgumentTypeError
import io

import pytest

from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.tools.cli.operator_options import Operator
from lerobot_serve.tools.cli.signature import number


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
