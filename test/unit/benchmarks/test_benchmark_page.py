# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks: every figure, every goal, also those that were missed."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
import pytest

from benchmarks.__main__ import main
from benchmarks.results import report
from benchmarks.results.chart import draw_chart
from benchmarks.results.page import number, page, plots
from benchmarks.results.report import Case

MACHINE = {
    'started': '2026-01-02T03:04:05+00:00',
    'cpu': 'a processor',
    'cores': 2,
    'load_average': [0.5, 0.4, 0.3],
    'python': '3.12.1',
    'ros_distro': 'jazzy',
    'middleware': 'rmw_fastrtps_cpp',
    'git_commit': 'abcdef0123456789',
}
CASES = [
    Case(
        'small | raw',
        {'request_bytes': 1000},
        {'lost': 3},
        {'ours': [1.0, 2.0, 3.0, 4.0], '<theirs>': [10.0, 20.0, 30.0, 4321.0]},
        {'ours/theirs': {'median': 0.1}, 'ours/nobody': {}},
        {'faster than they are': True, 'nothing is lost': False},
    ),
    Case('left out', {'why': 'there is no GPU here'}),
]


def result(cases=CASES, name='trips'):
    return report.as_json(name, 'how long it takes', MACHINE, {'rounds': 4}, cases)


def test_a_page_has_every_figure_and_every_goal():
    text = page([result()], 'benchmarks')
    assert '* [trips](#trips): how long it takes. Goals held: 1 of 2' in text
    assert '![trips](benchmarks/trips.svg)' in text
    assert '| ours | 4 | 1 | 2.5 | 3.85 | 3.97 |' in text
    assert '| <theirs> | 4 | 10 | 25 | 3677 | 4192 |' in text
    assert 'request bytes 1000, lost 3' in text
    assert '* ours/theirs: median 0.1' in text
    assert '* ours/nobody: not measured' in text
    assert '* holds: faster than they are' in text
    assert '* **missed**: nothing is lost' in text
    assert 'why there is no GPU here' in text
    assert 'a processor, 2 cores, load 0.5' in text
    assert '2026-01-02, commit abcdef0. Rounds 4.' in ' '.join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_a_result_without_times_has_no_picture():
    silent = result([CASES[1]])
    assert plots([silent]) == {}
    assert 'svg' not in page([silent], 'benchmarks').partition('## trips')[2]
    assert set(plots([silent, result(name='others')])) == {'others'}


def test_a_picture_shows_each_series():
    words = [
        e.text for e in ElementTree.fromstring(draw_chart(result()['cases'])).iter() if e.text
    ]
    assert 'small | raw' in words
    assert '<theirs>' in words
    assert '2.5 / 3.97' in words
    assert {'1 ms', '10 ms', '10000 ms'} <= set(words)


@given(
    st.lists(
        st.dictionaries(
            st.text(st.characters(categories=['L', 'S']), max_size=9),
            st.lists(st.floats(0, 1e9), max_size=4),
            max_size=3,
        ),
        max_size=3,
    )
)
def test_whatever_was_measured_can_be_drawn(all_series):
    cases = [Case(f'case {i}', series_ms=series) for i, series in enumerate(all_series)]
    drawn = draw_chart(result(cases)['cases'])
    shown = [values for case in cases for values in case.series_ms.values() if len(values)]
    # a median that rounds to nothing has no place on a logarithmic axis
    if not drawn:
        assert all(report.summarize(values)['p50'] <= 0 for values in shown)
        return
    tree = ElementTree.fromstring(drawn)
    width = float(tree.get('width'))
    for element in tree.iter('{http://www.w3.org/2000/svg}line'):
        assert all(0 <= float(element.get(name)) <= width for name in ('x1', 'x2'))


@pytest.mark.parametrize(
    ('value', 'shown'), [(None, ''), (0, '0'), (3.0, '3'), (0.01234, '0.0123'), (12345.6, '12346')]
)
def test_a_figure_has_the_digits_of_a_measurement(value, shown):
    assert number(value) == shown


def test_the_page_is_written_from_what_was_measured(tmp_path, capsys):
    results, pages = tmp_path / 'results', tmp_path / 'docs'
    results.mkdir()
    command = ['--out', str(results), '--page', str(pages)]
    assert main(command) == 1
    assert 'holds no results' in capsys.readouterr().err
    report.write(results, result(name='round_trip'))
    assert main(command) == 0
    assert '## round_trip' in (pages / 'benchmarks.md').read_text()
    assert (pages / 'benchmarks' / 'round_trip.svg').read_text().startswith('<svg')
    (results / 'hunt.json').write_text('{')
    assert main(command) == 1
    assert 'cannot be read' in capsys.readouterr().err
