# SPDX-License-Identifier: Apache-2.0
"""What the loop did is there in the morning, also after a kill and on a full disk."""

from __future__ import annotations

import errno
import os

import pytest
from support.loop.played_fleet import V2

from lerobot_serve.errors import UserError
from lerobot_serve.tools.loop.journal import Journal, JOURNAL_FILE, read_journal


def events(folder) -> list[tuple[str, str]]:
    return [(entry.event, entry.version) for entry in read_journal(folder)]


def test_what_was_rolled_back_is_known_after_a_restart(tmp_path):
    with Journal(tmp_path / 'new') as journal:
        journal.add('gate_admitted', V2)
        journal.add('rolled_back', V2, 'worse')
        assert journal.rolled_back == {V2[-16:]}
    with Journal(tmp_path / 'new') as again:
        assert again.rolled_back == {V2[-16:]}
        again.add('idle')
    assert events(tmp_path / 'new') == [('gate_admitted', V2), ('rolled_back', V2), ('idle', '')]


def test_two_conductors_do_not_share_a_folder(tmp_path):
    with Journal(tmp_path), pytest.raises(UserError, match='another loop uses'):
        Journal(tmp_path)
    Journal(tmp_path).__exit__(None, None, None)


def test_a_line_that_a_kill_cut_costs_no_other(tmp_path):
    with Journal(tmp_path) as journal:
        journal.add('rolled_back', V2)
    with (tmp_path / JOURNAL_FILE).open('a') as file:
        file.write('{"at": "2026-')
    with Journal(tmp_path) as journal:
        journal.add('idle')
    assert events(tmp_path) == [('rolled_back', V2), ('idle', '')]


def test_what_is_no_entry_is_left_out(tmp_path):
    hostile = [
        '[]',
        '{}',
        '{"at": 1, "event": 2, "version": 3, "text": 4}',
        '[' * 9000,
        'x' * 40000,
    ]
    (tmp_path / JOURNAL_FILE).write_text('\n'.join(hostile) + '\n')
    assert events(tmp_path) == []
    assert list(read_journal(tmp_path / 'none')) == []


def test_a_full_disk_loses_a_line_and_counts_it(tmp_path, monkeypatch):
    with Journal(tmp_path) as journal:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, 'write', full)
            journal.add('rolled_back', V2)
        assert journal.lost == 1
        assert journal.rolled_back == {V2[-16:]}


def test_a_line_that_the_disk_took_in_part_costs_no_other(tmp_path, monkeypatch):
    write = os.write
    with Journal(tmp_path) as journal:
        with monkeypatch.context() as patched:
            patched.setattr(os, 'write', lambda handle, data: write(handle, data[:20]))
            journal.add('idle', text='cut')
            journal.add('idle', text='cut again')
        assert journal.lost == 2
        journal.add('rolled_back', V2)
        journal.add('idle')
        assert journal.lost == 2
    assert events(tmp_path) == [('rolled_back', V2), ('idle', '')]


@pytest.mark.parametrize('event', ['tried_again', 'finished', 'adopted'])
def test_a_rollback_holds_until_a_person_lifts_it(tmp_path, event):
    with Journal(tmp_path) as journal:
        journal.add('rolled_back', V2, 'worse')
        journal.add('on_trial', V2)
        assert journal.rolled_back == {V2[-16:]}
        journal.add(event, V2)
        assert not journal.rolled_back
    with Journal(tmp_path) as again:
        assert not again.rolled_back


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / JOURNAL_FILE).symlink_to(tmp_path / 'elsewhere')
    with pytest.raises(UserError, match='cannot be written'):
        Journal(tmp_path)
