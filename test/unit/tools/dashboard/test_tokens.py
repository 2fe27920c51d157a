# SPDX-License-Identifier: Apache-2.0
"""The file of tokens, and what a wrong token costs its sender."""

from __future__ import annotations

import os
import stat

import pytest

from lerobot_serve.access.token_file import (
    ADDRESSES,
    FORGET_S,
    LONGEST_DELAY_S,
    open_tokens,
    parsed_tokens,
    Tokens,
    WrongTokens,
)
from lerobot_serve.errors import UserError

TOKEN = 'abcdefghijklmnop'


def test_the_first_start_makes_a_private_file_that_the_next_one_reads(tmp_path):
    path = tmp_path / 'below' / 'tokens'
    first = open_tokens(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (name,) = first.names
    assert len(first.token_of(name)) >= 32
    assert open_tokens(path).name_of(first.token_of(name)) == name


def test_a_token_names_its_person_and_nothing_else_does():
    tokens = Tokens({'anna': TOKEN, 'ben': 'x' * 20})
    assert tokens.name_of(TOKEN) == 'anna' and tokens.name_of('x' * 20) == 'ben'
    for wrong in ('', TOKEN[:-1], TOKEN + 'x', TOKEN.upper(), 'ä', '\udc80', 'x' * 200_000):
        assert tokens.name_of(wrong) == ''


def test_a_file_that_others_may_read_is_refused_with_the_remedy(tmp_path):
    path = tmp_path / 'tokens'
    open_tokens(path)
    os.chmod(path, 0o644)
    with pytest.raises(UserError, match=f'chmod 600 {path}'):
        open_tokens(path)


def test_a_folder_is_refused_without_advice_that_would_close_it(tmp_path):
    with pytest.raises(UserError, match='is a folder') as refused:
        open_tokens(tmp_path)
    assert 'chmod' not in str(refused.value)


@pytest.mark.parametrize(
    ('text', 'complaint'),
    [
        ('anna', ':1: must be NAME TOKEN, got 1 words'),
        ('\nanna a b', ':2: must be NAME TOKEN'),
        ('an/na ' + TOKEN, 'a name has letters'),
        ('anna short', 'must have 16 to 256'),
        (f'anna {TOKEN}\nanna {"x" * 16}', 'is there twice'),
        (f'anna {TOKEN}\nben {TOKEN}', 'is there twice'),
        ('# only a comment\n', 'has no line'),
    ],
)
def test_a_wrong_line_is_named_and_no_token_is_printed(text, complaint):
    with pytest.raises(UserError) as refused:
        parsed_tokens(text, 'file')
    assert complaint in str(refused.value) and TOKEN not in str(refused.value)


def test_a_folder_as_the_file_is_refused(tmp_path):
    with pytest.raises(UserError, match='file of tokens'):
        open_tokens(tmp_path)


def test_each_wrong_token_makes_the_next_reply_later():
    wrong, delays = WrongTokens(), []
    for _ in range(12):
        wrong.note('10.0.0.1', 5.0)
        delays.append(wrong.delay_s('10.0.0.1', 5.0))
    assert delays == sorted(delays) and delays[0] > 0 and delays[-1] == LONGEST_DELAY_S
    assert wrong.total == 12
    assert wrong.delay_s('10.0.0.2', 5.0) == 0
    assert wrong.delay_s('10.0.0.1', 5.0 + FORGET_S + 1) == 0


def test_the_addresses_are_bounded():
    wrong = WrongTokens()
    for number in range(ADDRESSES + 10):
        wrong.note(str(number), 1.0)
    assert wrong.delay_s('0', 1.0) == 0 and wrong.delay_s(str(ADDRESSES + 9), 1.0) > 0
