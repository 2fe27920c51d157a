# SPDX-License-Identifier: Apache-2.0
"""Sums and quantiles of traces: what was driven is what is counted, in little memory."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
import json
from math import floor

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.tools.audit_rig import Drive, drive, executed, POLICY

from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.stats.aggregates import (
    BINS,
    ERROR,
    GroupKey,
    LARGEST,
    Proportion,
    QuantileSketch,
    SMALLEST,
    TimeSeries,
)
from lerobot_serve.tools.stats.collect import collect_stats
from lerobot_serve.tools.stats.report import figures_of, stats_report, success
from lerobot_serve.tools.traces.reader import LineReader, read_records, strip_actions
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.encoding import decode, encode
from lerobot_serve.trace.format.records import fields_of, RecordIds


def of_slot(found: list[dict], slot: str) -> list[dict]:
    return [r for r in found if r.get('routing', r).get('slot') == slot]


@pytest.fixture
def driven() -> Drive:
    made = drive(5, episodes=12)
    for number, outcome in enumerate(('success', 'failure', 'success')):
        ids = RecordIds('robot_1', episode_id=f'robot_1-episode-{number}')
        made.router.append(
            fields_of(records.OutcomeRecord(78_000_000_000, *ids.fields(), outcome=outcome))
        )
    compared = records.ShadowRecord(
        78_000_000_000,
        *RecordIds('robot_1', 3, 1, 'robot_1-episode-0').fields(),
        live_policy=POLICY['a'],
        shadow_policy='<b>new</b>@cccc',
        rows=4,
        divergence=0.25,
    )
    begun = records.CanaryRecord(78_000_000_000, event='begun', reason='somebody said so')
    made.router += map(fields_of, (compared, begun))
    made.edge.append(fields_of(records.DropRecord(1_000, reason='late_chunk', count=3)))
    return made


@pytest.mark.parametrize('slot', 'ab')
def test_what_was_driven_is_what_is_counted(tmp_path, driven, slot):
    driven.write(tmp_path)
    stats = collect_stats([tmp_path])
    edge = stats.tallies['edge', slot, POLICY[slot]]
    requests = of_slot([r for r in driven.edge if r['kind'] == 'request'], slot)
    played = of_slot([r for r in driven.edge if r.get('rung') == 'policy'], slot)
    assert edge.requests == len(requests)
    assert edge.statuses == Counter(r['status'] for r in requests)
    assert edge.actions == len(played)
    assert edge.oldest_age_s == max(r['age_s'] for r in played)
    assert edge.durations['round_trip_ms'].high == max(r['round_trip_ms'] for r in requests)
    router = stats.tallies['router', slot, POLICY[slot]]
    placed = of_slot([r for r in driven.router if r.get('moved') is False], slot)
    assert router.episodes == len(placed)


def test_what_belongs_to_no_slot_is_counted_too(tmp_path, driven):
    driven.write(tmp_path)
    stats = collect_stats([tmp_path])
    edges = [tally for key, tally in stats.tallies.items() if key.role == 'edge']
    rungs = [r for r in driven.edge if r['kind'] == 'executed' and r['rung'] != 'policy']
    trips = [r for r in driven.edge if r['kind'] == 'executed' and r['cage_result'] != 'pass']
    assert sum((t.fallbacks for t in edges), Counter()) == Counter(r['rung'] for r in rungs)
    assert sum(t.trips for t in edges) == len(trips)
    assert stats.tallies['edge', '', ''].drops == {'late_chunk': 3}
    assert stats.canary == {'begun': 1}
    in_use = {f'edge {slot} {policy}' for slot, policy in POLICY.items()}
    assert in_use <= set(stats.policies) == set(stats_report(stats).data['policies'])
    outcomes = sum((t.outcomes for t in stats.tallies.values()), Counter())
    assert outcomes == {'success': 2, 'failure': 1}


def test_a_stall_is_an_end_of_playing_that_nobody_wanted(tmp_path):
    ids, made = RecordIds('robot_1', 3, 1, 'e'), Drive()
    for tick, (rung, reason) in enumerate(
        (
            ('hold', 'hold: nothing_to_play'),
            ('policy', ''),
            ('ramp', 'ramp: nothing_to_play'),
            ('hold', 'hold: nothing_to_play'),
            ('policy', ''),
            ('ramp', 'ramp: paused'),
            ('policy', ''),
            ('ramp', 'ramp: cleared'),
            ('policy', ''),
            # a person who takes over, lets go, commands again and hands back
            ('person', ''),
            ('ramp', 'ramp: person_lost'),
            ('person', ''),
            ('ramp', 'ramp: cleared'),
        )
    ):
        slot = 'a' if rung == 'policy' else ''
        made.edge.append(executed(tick, ids, rung, slot=slot, reason=reason))
    edge, _ = made.write(tmp_path)
    stats = collect_stats([edge])
    tally = stats.tallies['edge', 'a', '']
    assert (tally.stalls, tally.by_person) == (1, 2)
    assert 'person' not in tally.fallbacks
    assert ('by a person', '2 commands') in figures_of(tally)


def test_the_outcome_of_an_episode_with_a_person_is_not_of_the_policy(tmp_path):
    """The router records the outcomes of the edge once more, and knows of no person."""
    made = Drive()
    for tick, (episode, rung, outcome) in enumerate(
        (
            *(('good', 'policy', 'success'), ('bad', 'policy', 'failure')),
            *(('helped', 'policy', ''), ('helped', 'person', 'success')),
        )
    ):
        ids = RecordIds('robot_1', 3, tick, episode)
        of_command = RecordIds('robot_1') if rung == 'person' else ids
        made.edge.append(executed(tick, of_command, rung, slot='a'))
        if outcome:
            ended = {'episode_id': episode, 'outcome': outcome}
            made.edge.append(records.OutcomeRecord(tick, 'robot_1', **ended))
            made.router.append(records.ReportedOutcomeRecord(tick, **ended, slot='a'))
    edge, router = made.write(tmp_path)
    tally = collect_stats([edge]).tallies['edge', 'a', '']
    assert (tally.outcomes, tally.helped) == ({'success': 1, 'failure': 1}, {'success': 1})
    text = '3, 1 of 2 with an outcome and without a person succeeded'
    assert figures_of(tally)[0] == ('episodes', text)
    assert ('by a person', '1 commands; outcomes success 1') in figures_of(tally)
    # the chart counts an episode once
    wanted = {(edge,): 50.0, (router,): pytest.approx(66.7, abs=0.1), (edge, router): 50.0}
    for files, percent in wanted.items():
        assert [value for _, value in success(collect_stats(files))['slot a']] == [percent]


def test_lean_reading_tells_the_same_but_for_the_actions(tmp_path, driven):
    edge, router = driven.write(tmp_path, limit_bytes=4096)
    for file in (edge, router):
        wanted = [
            {name: value for name, value in record.items() if name not in ('raw', 'commanded')}
            for _, record in read_records(file)
        ]
        lean = LineReader(with_actions=False)
        assert [fields_of(line.record) for line in lean.read(file)] == wanted


@given(st.text(), st.lists(st.floats(allow_nan=False, allow_infinity=False)))
@settings(max_examples=100)
def test_no_text_is_taken_for_actions(text, raw):
    for reason in (text, text + ',"raw":[1]', ',"commanded":[' + text):
        record = {'kind': 'executed', 'reason': reason, 'raw': raw, 'commanded': raw, 'later': [1]}
        kept = {'kind': 'executed', 'reason': reason, 'later': [1]}
        try:
            line = encode(record)
        except UnicodeEncodeError:
            continue
        assert decode(strip_actions(line)) == decode(encode(kept))


class Page(HTMLParser):
    """What there is in a page."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags, self.links, self.texts = Counter(), [], []
        self.feed(content)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags[tag] += 1
        self.links += [value for name, value in attributes if name in ('src', 'href')]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_needs_nothing_else(tmp_path, driven):
    driven.write(tmp_path)
    assert main(['stats', str(tmp_path), '--html', str(tmp_path / 'page.html')]) == 0
    found = Page((tmp_path / 'page.html').read_text())
    assert (found.tags['svg'], found.tags['script'], found.links) == (4, 0, [])
    assert found.tags['b'] == 0
    assert any('<b>new</b>@cccc' in text for text in found.texts)


def test_machines_get_an_object(tmp_path, driven, capsys):
    driven.write(tmp_path)
    assert main(['stats', str(tmp_path), '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['lines'] == len(driven.edge) + len(driven.router) + 4
    assert {tuple(each[name] for name in GroupKey._fields) for each in found['slots']} >= {
        (role, slot, POLICY[slot]) for role in ('edge', 'router') for slot in 'ab'
    }
    assert found['quantile_error'] == 0.01


def test_what_cannot_be_read_or_written_is_said(tmp_path, driven, capsys):
    assert main(['stats', str(tmp_path / 'missing')]) == 1
    assert 'is not a trace' in capsys.readouterr().err
    driven.write(tmp_path)
    assert main(['stats', str(tmp_path), '--html', str(tmp_path / 'missing' / 'page.html')]) == 1
    assert 'page.html' in capsys.readouterr().err


values = st.lists(st.floats(0, LARGEST) | st.floats(0.01, 1000), min_size=1, max_size=60)


def sketch(counted: list[float]) -> QuantileSketch:
    made = QuantileSketch()
    for value in counted:
        made.add(value)
    return made


@given(values, st.floats(0, 1))
@settings(max_examples=200)
def test_a_quantile_is_within_its_error_of_the_exact_one(counted, part):
    exact = sorted(counted)[floor(part * (len(counted) - 1))]
    assert sketch(counted).quantile(part) == pytest.approx(exact, rel=1.001 * ERROR, abs=SMALLEST)


@given(values, values)
@settings(max_examples=100)
def test_merged_is_as_if_all_were_counted_in_one(first, second):
    merged, whole = sketch(first), sketch(first + second)
    merged.merge(sketch(second))
    assert merged.spread() == whole.spread()
    assert merged.total == pytest.approx(whole.total)


def test_without_values_there_is_no_quantile():
    assert QuantileSketch().quantile(0.5) is None
    assert QuantileSketch().spread() == {'n': 0}
    merged = QuantileSketch()
    merged.merge(QuantileSketch())
    assert merged.spread() == {'n': 0}


@given(st.lists(st.floats(-1e300, 1e300), min_size=1))
@settings(max_examples=50)
def test_no_number_is_too_much(counted):
    assert 0 <= sketch(counted).quantile(0.99) <= LARGEST


def test_its_bins_are_bounded():
    made = QuantileSketch()
    value = SMALLEST / 2
    while value < 10 * LARGEST:
        made.add(value)
        value *= 1.001
    assert len(made._bins) <= 2074


@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.sampled_from('ab'), st.booleans()), max_size=99)
)
@settings(max_examples=100)
def test_a_timeline_loses_nothing_and_stays_small(told):
    timeline = TimeSeries(Proportion)
    for time_s, name, is_one in told:
        timeline.at(time_s, name).add(is_one)
    for name in 'ab':
        line = list(timeline.of(name))
        assert len(line) <= BINS
        assert [time_s for time_s, _ in line] == sorted(time_s for time_s, _ in line)
        wanted = [is_one for _, whose, is_one in told if whose == name]
        assert sum(each.of for _, each in line) == len(wanted)
        assert sum(each.part for _, each in line) == sum(wanted)


def test_times_are_near_what_was_told():
    timeline = TimeSeries(Proportion)
    for second in range(1000):
        timeline.at(second, 'a').add(True)
    line = list(timeline.of('a'))
    assert timeline.width_s == 16
    assert all(each.of == timeline.width_s for _, each in line[1:-1])
    assert abs(line[0][0] - 8) < 8
