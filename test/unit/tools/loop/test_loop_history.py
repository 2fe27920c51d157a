# SPDX-License-Identifier: Apache-2.0
"""`loop history`: what it says of versions, champion and processes, and what waits."""

from __future__ import annotations

from datetime import datetime, UTC
import json

import pytest
from support.loop.played_fleet import V1, V2, V3
from support.time_zone import time_zone

from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.loop import journal
from lerobot_serve.tools.loop.history import entry_line, entry_text, summarize, summary_lines
from lerobot_serve.tools.loop.journal import Journal, JournalEntry

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
