# SPDX-License-Identifier: Apache-2.0
"""Who may act: every cell of the table, hosts, origins, the file of tokens; and which folders."""

from __future__ import annotations

import os
import stat

import pytest

from lerobot_serve.access.addresses import is_loopback_address
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
from lerobot_serve.tools.dashboard.http.guards import (
    check_access,
    host_name,
    is_known_host,
    is_same_origin,
    Refused,
)
from lerobot_serve.tools.dashboard.settings import DashboardSettings

# token, whose it is, private -> status; 0: allowed
TABLE = {
    ('', '', True): 401,
    ('', '', False): 403,
    ('wrong', '', True): 401,
    ('wrong', '', False): 403,
    ('right', 'anna', True): 0,
    ('right', 'anna', False): 403,
}


@pytest.mark.parametrize(('cell', 'status'), TABLE.items())
def test_access(cell, status):
    token, name, is_private = cell
    try:
        check_access(token, name, is_private=is_private)
        refused = 0
    except Refused as error:
        refused = error.status
        assert error.text
    assert refused == status


@pytest.mark.parametrize(
    ('address', 'is_loopback'),
    [
        ('127.0.0.1', True),
        ('127.9.9.9', True),
        ('::1', True),
        ('localhost', True),
        ('0.0.0.0', False),
        ('::', False),
        ('192.168.1.5', False),
        ('gpu1', False),
        ('', False),
    ],
)
def test_loopback(address, is_loopback):
    assert is_loopback_address(address) is is_loopback


NAMES = frozenset({'localhost', 'gpu1'})


@pytest.mark.parametrize(
    ('host', 'is_known'),
    [
        ('localhost:8300', True),
        ('LOCALHOST', True),
        ('gpu1:9000', True),
        ('127.0.0.1:8300', True),
        ('[::1]:8300', True),
        ('192.168.1.5', True),
        ('evil.example', False),
        ('evil.example:8300', False),
        ('localhost.evil.example', False),
        ('127.0.0.1.evil.example', False),
        ('', False),
        (':8300', False),
        ('[evil', False),
    ],
)
def test_a_foreign_host_name_is_refused(host, is_known):
    assert is_known_host(host, NAMES) is is_known


def test_a_host_header_without_its_port():
    assert [host_name(h) for h in ('A:1', 'a', '[::1]:80', '::1')] == ['a', 'a', '::1', ':']


@pytest.mark.parametrize(
    ('origin', 'host', 'is_tls', 'is_same'),
    [
        ('http://localhost:8300', 'localhost:8300', False, True),
        ('https://gpu1', 'gpu1', True, True),
        ('http://gpu1', 'gpu1', True, False),
        ('https://gpu1', 'gpu1', False, False),
        ('http://localhost:8301', 'localhost:8300', False, False),
        ('http://evil.example', 'localhost:8300', False, False),
        ('null', 'localhost:8300', False, False),
        ('', '', False, False),
    ],
)
def test_a_command_comes_from_this_site(origin, host, is_tls, is_same):
    assert is_same_origin(origin, host, is_tls=is_tls) is is_same


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


def test_missing_folders_are_made(tmp_path):
    traces, captures = tmp_path / 'fleet' / 'traces', tmp_path / 'captures'
    DashboardSettings(trace_folder=traces, capture_folder=captures)
    assert traces.is_dir() and captures.is_dir()
    # and may be there
    DashboardSettings(trace_folder=traces)


def test_what_is_no_folder_is_refused_by_its_option(tmp_path):
    file = tmp_path / 'traces'
    file.touch()
    with pytest.raises(UserError, match=f'--trace-folder {file}: is not a folder'):
        DashboardSettings(trace_folder=file)
    with pytest.raises(UserError, match=f'--capture-folder {file}/below: Not a directory'):
        DashboardSettings(capture_folder=file / 'below')
