# SPDX-License-Identifier: Apache-2.0

import json
import os
import subprocess
import sys

import pytest
from support.paths import REPOSITORY

from benchmarks.harness import machine
from benchmarks.harness.processes import child, module_command, page_faults
from benchmarks.results import report
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.telemetry.percentiles import summarize


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


def test_the_table_says_what_holds_and_what_does_not():
    lines = report.table([example_case()]).splitlines()
    assert lines[0] == '480x640 raw  (request_bytes 10, rounds 4, lost 0)'
    assert any(line.split()[:3] == ['total', '4', '1.000'] for line in lines)
    assert any(line.split() == ['never', '0', *'-----'] for line in lines)
    assert '  other: not measured' in lines
    assert '  holds   fast enough' in lines
    assert '  MISSED  faster still' in lines


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
        'import benchmarks.results.percentiles, benchmarks.results.windows\n'
        'sys.exit("rclpy" in sys.modules or "torch" in sys.modules)'
    )
    folder = REPOSITORY
    assert subprocess.run([sys.executable, '-c', code], cwd=folder).returncode == 0
