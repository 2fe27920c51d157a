# SPDX-License-Identifier: Apache-2.0
"""What the loop did is there in the morning, also after a kill, and is told; its verbs end."""

from __future__ import annotations

from datetime import datetime, UTC
import errno
import json
import os
import threading

import pytest
from support.loop.played_fleet import V1, V2, V3
from support.time_zone import time_zone

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.loop import journal
from lerobot_serve.tools.loop.history import entry_line, entry_text, summarize, summary_lines
from lerobot_serve.tools.loop.journal import Journal, JOURNAL_FILE, JournalEntry, read_journal
from lerobot_serve.tools.loop.observing import INTERRUPTED, run_verb
from lerobot_serve.versions.store import VersionStore


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


BEGAN = [('loop_started', '', 'store /s'), ('champion', V1, ''), ('idle', '', 'off')]
ADMITTED = [('new_version', V2, f'trained from {V1}'), ('gate_admitted', V2, '40 episodes')]
STARTED = [*ADMITTED, ('rollout_started', V2, ''), ('on_trial', V2, 'running')]
PROMOTED = [*STARTED, ('promoted', V2, 'promoted: all')]
FINISHED = [*PROMOTED, ('watched', V2, ''), ('finished', V2, ''), ('champion', V2, '')]


def entries(*events: tuple[str, str, str], hour: int = 1) -> list[JournalEntry]:
    return [
        JournalEntry(f'2026-06-01T{hour:02}:{number:02}:00+00:00', *each)
        for number, each in enumerate(events)
    ]


def test_an_entry_has_local_time_with_its_offset():
    (entry,) = entries(('promoted', V2, 'promoted: all'))
    with time_zone('Asia/Kathmandu'):
        assert entry_line(entry).startswith('2026-06-01 06:45:00+05:45  promoted reach')


def lines(*events: tuple[str, str, str]) -> list[str]:
    return summary_lines(summarize(entries(*events), ''))


NIGHTS = {
    'a version became the champion': FINISHED,
    'it is on trial': STARTED,
    'it is watched': PROMOTED,
    'a promotion that the loop did not see counts': [*STARTED, ('watched', V2, '')],
    'it was rolled back': [*PROMOTED, ('rolled_back', V2, 'worse')],
    'no router': [('router_unknown', '', 'no router')],
    'held': [('gate_held', V2, 'similarity: low')],
    'refused': [('gate_refused', V2, 'cage: 100 %')],
    'a gate failed': [('gate_failed', V2, 'damaged (again in 600 s)')],
    'a finish failed': [('finish_failed', V2, 'no server')],
    # what went on waits for no person
    'a gate failed, then not': [('gate_failed', V2, 'full'), *ADMITTED[-1:]],
    'a gate failed, and another champion came': [('gate_failed', V2, 'x'), ('champion', V3, '')],
    'a gate failed, and a person tried it': [('gate_failed', V2, 'x'), ('rolled_back', V2, 'x')],
}


@pytest.mark.golden
def test_what_a_night_was_and_what_waits_for_a_person(golden):
    texts = [f'{name}\n  ' + '\n  '.join(lines(*BEGAN, *each)) for name, each in NIGHTS.items()]
    golden.holds('loop_history.txt', '\n\n'.join(texts) + '\n')


def test_ends_that_nothing_recorded_and_a_clock_that_was_set_back_are_said():
    begun = ('loop_started', '', '')
    found = lines(begun, ('idle', '', ''), begun, ('loop_ended', '', ''), begun)
    assert any('started 3 times, 1 times after an end that it did not record' in f for f in found)
    back = [*entries(*BEGAN, hour=3), *entries(('idle', '', ''), hour=2)]
    assert any('set back 1 times' in each for each in summary_lines(summarize(back, '')))
    assert not any('set back' in each for each in lines(*BEGAN))


def test_events_before_the_time_give_the_champion_alone():
    old, new = entries(*BEGAN, *FINISHED, hour=1), entries(('idle', '', 'off'), hour=5)
    found = summary_lines(summarize([*old, *new], '2026-06-01T04'))
    assert found[0].startswith('versions: 0 trained')
    assert f'champion: {V2}, unchanged' in found


def test_a_text_does_not_repeat_its_event():
    assert entry_text('rolled_back', V2, 'rolled back: worse') == f'rolled back {V2}: worse'
    assert entry_text('idle', '', 'off') == 'idle: off'


def test_the_verb_prints_the_events_and_the_summary(tmp_path, capsys, monkeypatch):
    times = iter(datetime(2026, 6, 1, hour, tzinfo=UTC) for hour in (1, 5, 6))
    with Journal(tmp_path, lambda: next(times)) as opened:
        for event, version, text in (BEGAN[1], STARTED[-1], ('rolled_back', V2, 'worse')):
            opened.add(event, version, text)
    monkeypatch.setattr(journal, 'utc_now', lambda: datetime(2026, 6, 1, 9, tzinfo=UTC))
    words = ['loop', 'history', '--folder', str(tmp_path), '--hours', '5']
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line[27:] for line in printed[:2]] == [
        f'on trial {V2}: running',
        f'rolled back {V2}: worse',
    ]
    assert printed[2] == ''
    assert f'champion: {V1}, unchanged' in printed
    assert main([*words, '--json']) == 0
    shown = json.loads(capsys.readouterr().out)['events']
    assert [each['event'] for each in shown] == ['on_trial', 'rolled_back']
    assert main(['loop', 'history', '--folder', str(tmp_path / 'none')]) == 0
    assert 'nothing in the last 24 hours' in capsys.readouterr().out


LIMIT_S = 60.0
# runs until it is interrupted
ENDLESS = ['versions', 'serve', '--port', '0', '--store']


@pytest.fixture
def store(tmp_path):
    VersionStore.make(tmp_path / 'store')
    return str(tmp_path / 'store')


def test_a_verb_has_its_status_and_what_it_printed(store, tmp_path):
    done = run_verb(['versions', 'list', '--json', '--store', store], LIMIT_S, threading.Event())
    assert (done.status, done.errors) == (0, '')
    assert json.loads(done.output) == {'versions': []}
    missing = str(tmp_path / 'none')
    failed = run_verb(['versions', 'list', '--store', missing], LIMIT_S, threading.Event())
    assert failed.status == 1
    assert 'lerobot-serve versions:' in failed.errors


def test_one_that_takes_too_long_is_interrupted(store):
    done = run_verb([*ENDLESS, store], 1.0, threading.Event())
    assert done.status == INTERRUPTED
    assert done.errors.endswith('not done within 1 s')


def test_it_ends_with_the_loop(store):
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    done = run_verb([*ENDLESS, store], LIMIT_S, stop)
    assert done.status == INTERRUPTED
    assert done.errors.endswith('the loop ends')
