# SPDX-License-Identifier: Apache-2.0
"""What the demo says of a run, and of its learning: as figures, as text and as a page."""

from __future__ import annotations

from html.parser import HTMLParser
import json

import pytest
from support.demo.parts import a_run, LEARNED, PROOF
from support.time_zone import time_zone

from lerobot_serve.demo.results.report import (
    ACT_TEXT,
    as_text,
    audit_text,
    DemoRun,
    event_marks,
    html_report,
    summarize_run,
)
from lerobot_serve.demo.results.run_records import (
    passed_comparison,
    PassedComparison,
    RunRecords,
    with_gain,
)
from lerobot_serve.demo.results.scoreboard import CORRECTED, EndedEpisode, named, Scoreboard
from lerobot_serve.demo.tour.act_order import ACT_CLAIMS, LEARNING, SERVING, TOURS
from lerobot_serve.demo.tour.acts import SERVING_ACTS
from lerobot_serve.demo.tour.learning_acts import LEARNING_ACTS

SVG = 'http://www.w3.org/2000/svg'


def test_figures_of_the_board(board):
    assert board.successes() == {'v1@1': (10, 20), 'v2@2': (20, 20)}
    assert board.first_placed('v2') == 101.0
    assert board.first_placed('v3') is None
    assert board.placed_after('', 100.0) == 2
    assert [board.placed_after('v2', time_s) for time_s in (0.0, 101.0, 105.0)] == [2, 1, 0]


def test_the_summary_is_ok_when_all_was_shown_and_proved(board, records):
    def is_ok(run: DemoRun, audit: dict = PROOF) -> bool:
        return summarize_run(board, run, records, audit)['ok']

    assert is_ok(a_run(shown=True))
    assert not is_ok(a_run())
    assert not is_ok(a_run(shown=True), {**PROOF, 'violations': 1})
    assert not is_ok(a_run(shown=True), {})
    assert not is_ok(a_run(shown=True, error='the robots did not move'))


@pytest.mark.golden
def test_the_summary_reads_well(board, records, golden):
    run = a_run()
    run.acts |= LEARNED
    found = summarize_run(board, run, records, PROOF)
    json.dumps(found)
    assert found['episodes'] == {
        'v1': {'ended': 20, 'successes': 10},
        'v2': {'ended': 20, 'successes': 20},
    }
    (command,) = found['commands']
    assert command == {
        'act': 'kill',
        'command': 'kill -9 7',
        'status': 0,
        'output': ['gone <now>'],
    }
    golden.holds('demo_summary.txt', as_text(found) + '\n')
    assert '  STOPPED: no' in as_text({**found, 'error': 'no'}).splitlines()


def test_a_trace_without_an_end_is_mentioned_when_there_is_one():
    assert '1 without an end' in audit_text(PROOF)
    assert audit_text({**PROOF, 'without_end': 0}).endswith('0 violations')


def test_a_run_that_saw_nothing_has_a_summary_and_a_report():
    empty, run = Scoreboard(['robot_1']), DemoRun(error='the robots move: not within 1 s')
    found = summarize_run(empty, run, RunRecords(), {})
    assert 'STOPPED: the robots move' in as_text(found)
    assert 'no data' in html_report(empty, run, RunRecords(), found)


@pytest.fixture
def page(board, records) -> str:
    run = a_run()
    with time_zone('Asia/Kathmandu'):
        return html_report(board, run, records, summarize_run(board, run, records, PROOF))


def test_the_report_has_the_story_in_order_with_what_was_typed(page):
    places = [page.index(f'<h3>{claim}') for claim in TOURS[SERVING].values()]
    assert places == sorted(places)
    kill = page[places[2] : places[3]]
    assert '<b>$ kill -9 7</b>' in kill and '# why &lt;7&gt;' in kill
    assert 'gone &lt;now&gt;' in kill and 'a1 is killed &lt;hard&gt;' in kill
    # in time order: the event came before the command
    assert kill.index('is killed') < kill.index('$ kill')


def test_the_report_has_the_pictures_and_escapes_what_it_holds(page):
    # no motion of an arm was recorded
    assert page.count('<svg') == 3 and 'The arm under' not in page
    # in each of the three plots that have data
    assert page.count('>a1 killed</text>') == 3
    assert '05:31:43' in page and 'class="mark"' in page
    assert 'from 1970-01-01 05:31:' in page and 'Times are local.' in page
    assert '&lt;rolled back&gt;' in page
    for raw in ('<hard>', '<now>', '<rolled'):
        assert raw not in page


def test_the_report_needs_no_other_address(page):
    assert 'http' not in page.replace(SVG, '')
    assert 'src=' not in page and '@import' not in page


def test_the_report_is_for_phones_and_for_dark_screens(page):
    assert 'width=device-width' in page and 'overflow-x: auto' in page
    assert 'prefers-color-scheme: dark' in page


def test_the_report_is_well_formed(page):
    open_tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, _: object) -> None:
            if tag != 'meta':
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Tags().feed(page)
    assert open_tags == []


def test_every_event_with_a_label_is_marked(board):
    for number, mark in enumerate(('promoted', 'rolled back', 'b drained', 'b restored', '')):
        board.add_event(110.0 + number, 'x', mark)
    assert [mark for _, mark in event_marks(board)] == [
        *('a1 killed', 'promoted', 'rolled back', 'b drained', 'b restored')
    ]


def test_every_act_has_a_function_and_a_text():
    assert {*SERVING_ACTS, *LEARNING_ACTS} == {*ACT_CLAIMS} == {*ACT_TEXT}
    assert {*LEARNING_ACTS} == {*TOURS[LEARNING]} == {*LEARNED}


def compared(time_s: float, log10: float, candidate: int, champion: int) -> PassedComparison:
    """Return a comparison of twenty episodes each."""
    evidence = {'log10_not_worse': log10, 'log10_level': 1.301}
    for slot, good in (('candidate', candidate), ('champion', champion)):
        evidence |= {f'{slot}_successes': good, f'{slot}_failures': 20 - good}
    return passed_comparison(time_s, evidence)


def learned(*promoted_at_s: float) -> dict:
    rounds = [{'round': i + 1, 'promoted_at_s': time_s} for i, time_s in enumerate(promoted_at_s)]
    return {'shown': True, 'took_s': 1.0, 'rounds': rounds}


def test_the_gain_of_two_rounds_is_from_the_first_champion_to_the_last_version():
    # the second rollout had two steps; what comes after the last promotion is of another act
    steps = [
        compared(10.0, 1.4, 14, 5),
        compared(20.0, 1.35, 16, 15),
        compared(25.0, 1.5, 19, 15),
        compared(90.0, 3.0, 20, 0),
    ]
    found = with_gain(learned(10.5, 25.5), steps)
    assert (found['before_percent'], found['after_percent'], found['shown']) == (25, 95, True)
    first, second = found['rounds']
    assert (first['candidate'], first['champion']) == ([14, 20], [5, 20])
    assert (second['evidence'], second['candidate']) == (31.6, [19, 20])


@pytest.mark.parametrize(
    'steps',
    [
        # too small a gain, too little evidence, none at all
        [compared(10.0, 1.4, 16, 15), compared(20.0, 1.4, 18, 16)],
        [compared(10.0, 1.4, 14, 5), compared(20.0, 1.29, 19, 15)],
        [],
    ],
)
def test_a_gain_that_is_not_proved_is_not_shown(steps):
    found = with_gain(learned(10.5, 20.5), steps)
    assert not found['shown']
    assert ACT_TEXT['learn'](found)


def test_versions_of_one_name_have_their_digest():
    counts = {'reach@1': (1, 9), 'reach@2': (8, 9), CORRECTED: (9, 9), 'v3@7': (0, 1)}
    assert named(counts) == {'reach@1': (1, 9), 'reach@2': (8, 9), CORRECTED: (9, 9), 'v3': (0, 1)}


def test_an_attempt_that_a_person_corrected_is_no_success_of_the_policy():
    board = Scoreboard(['robot_1'])
    board.add_outcome(EndedEpisode(1.0, 'robot_1', CORRECTED, True, 2.0))
    board.add_outcome(EndedEpisode(2.0, 'robot_1', 'reach@1', False, 4.0))
    assert board.successes() == {CORRECTED: (1, 1), 'reach@1': (0, 1)}
