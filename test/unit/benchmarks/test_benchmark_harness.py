# SPDX-License-Identifier: Apache-2.0
"""How benchmarks measure: their windows and their results."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from support.paths import REPOSITORY

from benchmarks.harness import machine
from benchmarks.harness.processes import child, module_command, page_faults
from benchmarks.results import growth, report
from benchmarks.results.growth import Window
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.telemetry.durations import summarize


def test_spread_holds_every_figure():
    figures = summarize([float(value) for value in range(1, 101)])
    assert list(figures) == ['n', 'min', 'p50', 'p95', 'p99', 'max']
    assert (figures['n'], figures['min'], figures['max']) == (100, 1.0, 100.0)
    assert figures['p50'] == pytest.approx(50.5)
    assert figures['p99'] == pytest.approx(99.01)


def test_spread_of_nothing_claims_nothing():
    assert summarize([]) == {'n': 0}


def test_spread_of_one_value_is_that_value():
    assert set(summarize([2.5]).values()) == {1, 2.5}


def test_ratio_compares_medians_and_shows_its_parts():
    values, reference = [1.0] * 50 + [3.0] * 50 + [2.0] * 100, [1.0] * 200
    assert ratio(values, reference) == {
        'median': 2.0,
        'lowest_part': 1.0,
        'highest_part': 3.0,
    }


def test_ratio_bears_series_of_different_lengths():
    assert ratio([2.0] * 7, [1.0] * 5)['median'] == 2.0


def test_ratio_of_too_little_is_empty():
    assert ratio([1.0, 2.0, 3.0], [1.0] * 100) == {}
    assert ratio([], []) == {}


def example_case():
    return Case(
        '480x640 raw',
        parameters={'request_bytes': 10},
        counts={'rounds': 4, 'lost': 0},
        series_ms={'total': [1.0, 2.0, 3.0, 4.0], 'never': []},
        ratios={'total/echo': {'median': 1.25}, 'other': {}},
        goals={'fast enough': True, 'faster still': False},
    )


def test_a_result_survives_the_file(tmp_path):
    result = report.as_json('example', 'text', {'cpu': 'x'}, {'rounds': 4}, [example_case()])
    file = report.write(tmp_path, result)
    assert file == tmp_path / 'example.json'
    read = json.loads(file.read_text())
    assert read == result
    assert list(read) == ['benchmark', 'about', 'machine', 'parameters', 'cases']
    (case,) = read['cases']
    assert case['series_ms']['total']['p50'] == 2.5
    assert case['series_ms']['never'] == {'n': 0}
    assert case['counts'] == {'rounds': 4, 'lost': 0}
    assert case['goals'] == {'fast enough': True, 'faster still': False}


def test_machine_facts_are_all_there():
    facts = machine.facts('rmw_of_choice')
    assert facts['middleware'] == 'rmw_of_choice'
    assert len(facts['load_average']) == 3
    assert facts['cores'] >= 1
    assert {'cpu', 'memory_gib', 'kernel', 'python', 'ros_distro', 'rclpy', 'torch'} <= set(facts)
    json.dumps(facts)


def test_machine_facts_are_read_from_the_kernel():
    assert machine.cpu_model('processor\t: 0\nmodel name\t: Fast One\n') == 'Fast One'
    assert machine.cpu_model('')
    assert machine.memory_gib('MemTotal:       16777216 kB\nMemFree: 1 kB\n') == 16.0
    assert machine.memory_gib('') == 0.0


def test_what_is_not_installed_is_none(tmp_path):
    assert machine.version('no-such-package') == 'none'
    assert machine.git_commit(tmp_path / 'nowhere') == 'none'
    assert machine.read('/nowhere/at/all') == ''


def test_a_child_is_ended_when_the_benchmark_fails(tmp_path):
    command = [sys.executable, '-c', 'import time; time.sleep(60)']
    with pytest.raises(ZeroDivisionError), child(command, tmp_path / 'log') as process:
        raise ZeroDivisionError
    assert process.returncode is not None


def test_page_faults_are_counted():
    assert page_faults(os.getpid()) > 0
    assert page_faults(2**30) == 0


def test_a_module_command_names_this_python():
    assert module_command('harness.echo', 5) == [
        sys.executable,
        '-m',
        'benchmarks.harness.echo',
        '5',
    ]


def test_the_plain_modules_need_no_ros():
    code = (
        'import sys\n'
        'import benchmarks.harness.processes, benchmarks.harness.machine\n'
        'import benchmarks.results.growth, benchmarks.results.outage\n'
        'import benchmarks.harness.profiler, benchmarks.results.report\n'
        'import benchmarks.results.percentiles\n'
        'sys.exit("rclpy" in sys.modules or "torch" in sys.modules)'
    )
    folder = REPOSITORY
    assert subprocess.run([sys.executable, '-c', code], cwd=folder).returncode == 0


def window(cpu_s: float = 0.1, held_mb: float = 100.0, slowest_ms: float = 9.0) -> Window:
    latencies_ms = [1.0] * 99 + [slowest_ms]
    return Window(2.0, latencies_ms, {'router': cpu_s}, {'router': held_mb})


def test_a_window_tells_what_a_request_cost():
    assert window(cpu_s=0.2).cpu_ms == {'router': pytest.approx(2.0)}
    assert window().p99_ms == pytest.approx(1.08)


def test_a_window_without_answers_claims_nothing():
    empty = Window(1.0, [], {'router': 0.1}, {'router': 1.0})
    assert math.isnan(empty.p99_ms)
    assert math.isnan(empty.cpu_ms['router'])


def test_what_robots_waited_in_all_windows_stays_in_order():
    run = [Window(1.0, [1.0, 2.0], {}, {}), Window(1.0, np.array([3.0]), {}, {})]
    assert growth.all_latencies_ms(run).tolist() == [1.0, 2.0, 3.0]


def test_the_share_of_a_core_is_that_of_the_whole_run():
    assert growth.share_of_a_core([window(0.5), window(1.5)], 'router') == 0.5


@pytest.mark.parametrize(('count', 'length'), [(3, 1), (5, 1), (6, 2), (12, 4)])
def test_thirds_are_as_long_and_do_not_meet(count, length):
    run = [window(held_mb=float(number)) for number in range(count)]
    first, last = growth.thirds(run)
    assert list(first) == run[:length]
    assert list(last) == run[-length:]


def test_two_windows_have_no_thirds():
    with pytest.raises(ValueError, match='2 windows have no thirds; measure three at least'):
        growth.thirds([window(), window()])


def test_a_cost_has_grown_when_its_median_is_above_all_earlier_ones():
    assert growth.is_not_above([1.0, 3.0], [2.0, 2.9, 99.0])
    assert not growth.is_not_above([1.0, 3.0], [1.0, 3.1, 3.2])
    assert not growth.is_not_above([1.0, 3.0], [math.nan])
    assert not growth.is_not_above([math.nan], [1.0])


def test_a_run_that_stays_as_it_is_is_flat():
    run = [window(cpu_s) for cpu_s in (0.1, 0.12, 0.1, 0.3, 0.11, 0.12)]
    goals = growth.steady_goals(run)
    assert goals == {
        'p99 stays': True,
        'processor time of router stays': True,
        'memory of router stays within 5 MB': True,
    }
    assert growth.steady_ratios(run) == {
        'p99': 1.0,
        'processor time of router': 1.045,
        'memory of router': 1.0,
    }


@pytest.mark.parametrize(
    ('end', 'missed'),
    [
        ({'slowest_ms': 90.0}, 'p99 stays'),
        ({'cpu_s': 0.11}, 'processor time of router stays'),
        ({'held_mb': 105.1}, 'memory of router stays within 5 MB'),
    ],
)
def test_whatever_grows_in_the_course_of_time_is_told(end, missed):
    run = [window()] * 4 + [window(**end)] * 2
    assert [goal for goal, held in growth.steady_goals(run).items() if not held] == [missed]


def test_memory_that_is_taken_in_the_beginning_is_no_growth():
    run = [window(held_mb=held) for held in (50.0, 100.0, 101.0, 102.0, 103.0, 104.0)]
    assert all(growth.steady_goals(run).values())


def test_a_ratio_to_nothing_is_none():
    assert growth.ratio_of_medians([1.0, 2.0, 3.0], [4.0]) == 2.0
    assert math.isnan(growth.ratio_of_medians([0.0], [4.0]))
