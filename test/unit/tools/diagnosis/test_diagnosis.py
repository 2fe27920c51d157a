# SPDX-License-Identifier: Apache-2.0
"""Which window is looked at, whose records, what the command prints and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
import json

import pytest
from support.time_zone import time_zone
from support.tools.diagnosis_rig import command as executed
from support.tools.diagnosis_rig import LENGTH_S, Scene, scene, STALL_S, story_of, WALL_S

from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.diagnosis.report import outcome
from lerobot_serve.tools.diagnosis.timeline import describe_record
from lerobot_serve.tools.operate.rollout.history import Decision, decision_line
from lerobot_serve.tools.output.text import (
    DAY_S,
    format_local,
    format_utc,
    parse_time_of_day,
    resolve_within,
)
from lerobot_serve.tools.traces.fields import record_of
from lerobot_serve.tools.traces.stalls import StallDetector
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import RecordIds, TraceRecord


def command(rung: str, reason: str = '') -> TraceRecord:
    return record_of({'kind': 'executed', 'rung': rung, 'reason': reason})


def change(rung: str, why: str = '') -> TraceRecord:
    return record_of({'kind': 'state', 'component': 'rung', 'to': rung, 'reason': why})


def incident(made: Scene, time_s: float, name: str) -> None:
    made.add('robot_1', time_s, records.IncidentRecord(0, 'robot_1', name=name))


def test_a_line_says_which_policies_are_in_use():
    named = [records.policy('a', 'reach@f0'), records.policy('b', 'act@b1')]
    present = records.PoliciesRecord(1, policies=named)
    assert describe_record(present) == 'policies in use: a reach@f0, b act@b1'
    present.policies = []
    assert describe_record(present) == 'policies in use: none'
    # whatever was written there
    for damaged in (7, 'text', [7, None], None, {'slot': 'a'}):
        record = record_of({'kind': 'policies', 'policies': damaged})
        assert describe_record(record) == 'policies in use: none'


@pytest.mark.parametrize(('version', 'text'), [(None, ''), (12, ', version 12 of the split')])
def test_a_line_says_under_which_split_an_episode_was_placed(version: int | None, text: str):
    placed = records.PlacementRecord(
        1,
        *RecordIds(episode_id='ep').fields(),
        slot='a',
        bucket=1,
        split_percent=50,
        moved=False,
        server='/a',
        split_version=version,
    )
    assert describe_record(placed) == f'episode ep placed in slot a at /a{text}'


# moments


@pytest.fixture(params=['UTC', 'Europe/Berlin', 'America/New_York'])
def zone(request) -> Iterator[str]:
    with time_zone(request.param):
        yield request.param


def seconds(words: str) -> float:
    return datetime.fromisoformat(words).timestamp()


@pytest.mark.parametrize(
    ('words', 'utc', 'length_s'),
    [
        ('2026-07-30T14:03Z', '14:03', 60.0),
        ('2026-07-30T14:03:00Z', '14:03', 0.0),
        ('2026-07-30T16:03:20+02:00', '14:03:20', 0.0),
        ('2026-07-30 16:03:20.125+02:00', '14:03:20.125', 0.0),
        ('14:03Z', '14:03', 60.0),
        ('4:03+02:00', '02:03', 60.0),
        ('16:03:20+02:00', '14:03:20', 0.0),
        ('14:03:20.5Z', '14:03:20.500', 0.0),
    ],
)
def test_a_time_with_an_offset_is_the_same_everywhere(words, utc, length_s, zone):
    named = parse_time_of_day(words)
    day_s = seconds('2026-07-30T00:00:00+00:00')
    found = resolve_within(named, day_s, day_s + DAY_S - 1)
    assert (found, named.length_s) == (seconds(f'2026-07-30T{utc}+00:00'), length_s)
    assert (named.since_1970_s is not None) is words.startswith('2026')


@pytest.mark.parametrize('words', ['14:03:20', '2026-07-30T14:03:20', '2026-07-30 14:03:20'])
def test_a_time_without_an_offset_is_local(words, zone):
    noon_s = seconds('2026-07-30T12:00:00')
    found = resolve_within(parse_time_of_day(words), noon_s, noon_s + 7500)
    assert found == seconds('2026-07-30T14:03:20')
    assert format_local(found) == '14:03:20.000'


@pytest.mark.parametrize('words', ['', 'now', '24:00', '14:60', '14', '14:03:61', '99999-01-01'])
def test_what_is_no_time_is_refused(words):
    with pytest.raises(ValueError, match='time of day'):
        parse_time_of_day(words)


def test_the_last_day_of_the_trace_on_which_it_was_that_late_counts(zone):
    begin_s = seconds('2026-07-30T00:00:00')
    noon = parse_time_of_day('12:00:00')
    assert resolve_within(noon, begin_s, begin_s + 3 * DAY_S) == begin_s + 2.5 * DAY_S
    assert resolve_within(noon, begin_s + 36_000, begin_s + 50_000) == begin_s + 43_200
    # the trace ends before noon: that of the day before does not lie in it either
    assert resolve_within(noon, begin_s + 36_000, begin_s + 40_000) == begin_s + 43_200
    assert resolve_within(parse_time_of_day('0:01'), begin_s - 600, begin_s - 120) == begin_s + 60


def test_the_hour_that_a_change_of_the_clock_repeats_is_the_one_of_the_trace():
    with time_zone('Europe/Berlin'):
        first, second = (seconds(f'2026-10-25T02:30:00+0{n}:00') for n in (2, 1))
        assert second - first == 3600
        half_past_two = parse_time_of_day('02:30:00')
        assert resolve_within(half_past_two, first - 600, first + 600) == first
        assert resolve_within(half_past_two, second - 600, second + 600) == second
        # of both the last one
        assert resolve_within(half_past_two, first - 600, second + 600) == second
        # a day of 23 hours
        morning = seconds('2026-03-29T08:00:00')
        assert resolve_within(parse_time_of_day('08:00:00'), morning - DAY_S, morning) == morning
        assert format_local(first, day=True) == '2026-10-25 02:30:00.000+02:00'
        assert format_local(second, day=True) == '2026-10-25 02:30:00.000+01:00'


@pytest.mark.parametrize('at_s', [1_761_350_400.0 + n * 1800 for n in range(8)])
def test_a_time_that_is_copied_is_the_same_time(at_s, zone):
    """Half hours around a change of the clock: those of people, of history and of JSON."""
    line = decision_line(Decision(at_s, '/router', 'drained', '', ''))
    for shown in (format_local(at_s, day=True), format_utc(at_s), line.partition('  ')[0]):
        assert parse_time_of_day(shown).since_1970_s == at_s


def test_a_time_beyond_all_clocks_is_a_number():
    assert format_utc(1e15) == format_local(1e15, day=True) == '1000000000000000.000 s'
    assert resolve_within(parse_time_of_day('12:00'), 0.0, 1e15) == 1e15


# stalls


def test_an_episode_that_ended_and_a_queue_that_stays_empty_is_a_stall_of_the_diagnosis():
    told = [
        (0.0, command('policy')),
        (0.1, command('ramp', 'ramp: cleared')),
        (0.2, command('hold', 'hold: nothing_to_play')),
        (0.6, record_of({'kind': 'incident', 'name': 'stalled', 'reason': 'nothing_to_play'})),
        (1.0, change('hold', 'hold: cleared')),
        (2.0, command('policy')),
    ]
    found = {}
    for with_holds in (False, True):
        detector = StallDetector(with_holds=with_holds)
        for time_s, record in told:
            detector.add_record(time_s, record)
        found[with_holds] = [(stall.begin_s, stall.end_s) for stall in detector.longest]
    assert found == {False: [], True: [(0.6, 2.0)]}


@pytest.mark.parametrize('tell', [command, change])
def test_a_stall_begins_where_playing_ends_and_ends_where_it_begins(tell):
    playing = StallDetector()
    told = [
        tell('hold', 'no'),
        tell('policy'),
        tell('ramp', 'dry'),
        tell('hold', 'dry'),
        tell('policy'),
    ]
    for time_s, record in enumerate(told):
        playing.add_record(float(time_s), record)
    playing.finish()
    assert [(s.begin_s, s.end_s, s.reason, s.is_open) for s in playing.longest] == [
        (2.0, 4.0, 'dry', False)
    ]


def test_what_somebody_wanted_is_no_stall_and_one_without_end_lasts_to_the_end():
    playing = StallDetector()
    for time_s, record in enumerate([command('policy'), command('hold', 'hold: paused')]):
        playing.add_record(float(time_s), record)
    assert not playing.longest
    for time_s, record in enumerate(
        [command('policy'), command('hold', 'dry'), command('hold')], 5
    ):
        playing.add_record(float(time_s), record)
    playing.finish()
    assert [(s.begin_s, s.end_s, s.is_open) for s in playing.longest] == [(6.0, 7.0, True)]


@pytest.mark.parametrize('why', ['paused', 'no_episode', 'latched', 'stopped'])
def test_a_stall_ends_where_a_person_or_the_end_of_the_episode_ends_the_playing(why):
    playing = StallDetector()
    seen = [
        (0.0, change('policy')),
        (1.0, change('ramp', 'ramp: nothing_to_play')),
        (1.3, change('hold', f'hold: {why}')),
        (601.0, change('policy')),
        # an end of playing that is intended is none
        (602.0, change('ramp', f'ramp: {why}')),
        (900.0, change('policy')),
    ]
    for time_s, record in seen:
        playing.add_record(time_s, record)
    playing.finish()
    assert [(s.begin_s, s.end_s, s.is_open) for s in playing.longest] == [(1.0, 1.3, False)]


def test_of_many_stalls_the_longest_are_kept_and_all_are_counted():
    playing = StallDetector(kept=3)
    for number in range(20):
        playing.add_record(number * 100.0, command('hold', 'dry') if number else command('policy'))
        playing.add_record(number * 100.0 + number, command('policy'))
    assert (playing.count, playing.total_s) == (19, 190.0)
    assert [stall.length_s for stall in playing.longest] == [17.0, 18.0, 19.0]


# windows


def test_the_window_has_its_edges(tmp_path):
    made = scene()
    for time_s, name in ((19.99, 'too_early'), (20.0, 'first'), (32.0, 'last'), (32.01, 'late')):
        incident(made, time_s, name)
    facts = story_of(made, tmp_path, at='14:00:26', around_s=6.0).facts
    told = [each.text for each in facts.events if 'incident' in each.text]
    assert told == ['incident first', 'incident last']


def test_a_minute_is_looked_at_as_a_whole(tmp_path):
    facts = story_of(scene(), tmp_path, at='14:00', around_s=1.0).facts
    assert (facts.begin_s - WALL_S, facts.end_s - WALL_S) == (-1.0, 61.0)


def test_without_a_time_it_is_the_longest_stall(tmp_path):
    story = story_of(scene(), tmp_path)
    assert story.facts.stalls == [story.survey.longest_stall]
    assert story.survey.longest_stall.begin_s == pytest.approx(WALL_S + STALL_S[0])


def test_a_time_in_the_middle_of_a_long_stall_is_of_that_stall(tmp_path):
    """The server is away for ten minutes; the window has no command of before."""
    made = Scene()
    for time_s in range(720):
        is_stall = 60 <= time_s < 660
        rung, why = ('hold', 'hold: nothing_to_play') if is_stall else ('policy', '')
        made.add('robot_1', float(time_s), executed(rung, why, step=time_s))
    story = story_of(made, tmp_path, at='14:06:00')
    assert [stall.length_s for stall in story.facts.stalls] == [600.0]
    assert outcome(story) == 'no_evidence'
    later = story_of(made, tmp_path, at='14:11:30')
    assert (later.facts.stalls, len(later.facts.earlier_stalls)) == ([], 1)


def test_the_other_robot_has_no_stall_and_is_told_apart(tmp_path):
    story = story_of(scene('network'), tmp_path, 'robot_2')
    assert (story.survey.stall_count, story.facts) == (0, None)
    story = story_of(scene('network'), tmp_path, 'robot_2', at='14:00:26')
    assert story.facts.stalls_of_others == {'robot_1': 1}
    assert not story.causes
    assert all(request.edge_record for request in story.facts.requests.values())


def test_memory_is_of_the_window_alone(tmp_path):
    facts = story_of(scene(), tmp_path, at='14:00:03', around_s=1.0).facts
    assert len(facts.requests) == 8
    assert all(
        len(before) + len(during) < 9 for p in facts.peers for before, during in p.waits.values()
    )


def test_damage_is_noted_and_not_hidden(tmp_path):
    scene().write(tmp_path, {'robot_1': [b'{"kind":\n']})
    run = TraceRun(tmp_path / 'robot_1.jsonl', 0)
    assert sum(1 for _ in run.read()) == run.lines
    assert run.is_lossy and run.is_ended and run.role == 'edge'


# the command


def test_the_command_explains_the_worst_stall(tmp_path, capsys):
    scene('server_overloaded').write(tmp_path)
    assert main(['diagnose', str(tmp_path), '--client', 'robot_1']) == 0
    text = capsys.readouterr().out
    assert 'Server overloaded' in text
    assert 'stalls: 1, 0.5 s in total' in text
    assert '14:00:26.000' in text
    assert 'request 53 ok: 447 ms = network 6 + queue wait 400' in text
    assert main(['diagnose', str(tmp_path), '--client', 'robot_1', '--brief']) == 0
    assert 'request 53' not in capsys.readouterr().out


def test_the_command_prints_one_object(tmp_path, capsys):
    scene('cage').write(tmp_path)
    line = ['diagnose', str(tmp_path), '--client', 'robot_1', '--at', '14:00:26', '--json']
    assert main(line) == 0
    written = json.loads(capsys.readouterr().out)
    assert [r['name'] for r in written['rules'] if r['status'] == 'found'] == ['cage']
    assert written['clocks'][1] == {'node': '/server', 'clock_offset_s': 3.747, 'requests': 72}


def test_how_it_ends(tmp_path, capsys):
    scene().write(tmp_path / 'traces')
    line = ['diagnose', str(tmp_path / 'traces'), '--client']
    assert main([*line, 'robot_1']) == 0
    assert main([*line, 'robot_2']) == 0
    assert main([*line, 'robot_9']) == 4
    assert 'no record of robot_9 in these traces; recorded clients: robot_1, robot_2' in (
        capsys.readouterr().out
    )
    assert main([*line, 'robot_1', '--at', '15:03']) == 4
    assert 'no record at 2026-07-30 15:03:00.000+00:00' in capsys.readouterr().out
    assert main(['diagnose', str(tmp_path / 'nowhere'), '--client', 'robot_1']) == 1
    assert 'is not a trace' in capsys.readouterr().err
    for wrong in (['--at', 'yesterday'], ['--around', '-1'], ['--around', 'nan']):
        with pytest.raises(SystemExit) as ended:
            main([*line, 'robot_1', *wrong])
        assert ended.value.code == 2


def test_a_time_that_only_the_window_touches_is_covered(tmp_path):
    at = f'14:00:{int(LENGTH_S) + 5}'
    assert story_of(scene(), tmp_path, at=at, around_s=10.0).is_covered
    assert not story_of(scene(), tmp_path, at=at, around_s=4.0).is_covered
