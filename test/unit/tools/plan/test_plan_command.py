# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve plan`: its command line, its table, its JSON and its exit codes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.verbs import plan
from lerobot_serve.tools.plan.options import ALL_OPTIONS

SMALL = ('--robots', '12', '--inference-ms', '150', '--rate-hz', '1', '--seconds', '20')


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    return plan.main(parser.parse_args(arguments))


def as_json(capsys, *arguments: str) -> dict:
    run(*arguments, '--json')
    return json.loads(capsys.readouterr().out)


def test_people_get_the_formula_the_curve_and_the_verdict(capsys):
    assert run(*SMALL) == 0
    text = capsys.readouterr().out
    for words in (
        '(request_threshold_s 2)',
        '\nformula\n',
        '12 robots x 1 Hz x 150 ms',
        '12 / 5 = 3, plus 1 spare: 4',
        'simulation of 20 s',
        '| enough',
        '| no spare',
        '\n3 servers, including one spare\nthe formula gives 4: it keeps 20% of each server idle',
        'as headroom\nbuy the larger number: 4\n',
        '\n2 are not enough:\n  after the loss of a server, ',
        '\n  after the loss of a server, overload',
    ):
        assert words in text
    assert text.isascii()
    assert max(map(len, text.splitlines())) < 140


def test_where_the_simulation_needs_more_its_number_is_the_one_to_buy(capsys):
    batches = ('--inference-ms', '150', '--batch', '16', '--per-more-ms', '10')
    chunks = ('--chunk-rows', '30', '--rate-hz', '2', '--network-ms', '0', '--failover-s', '0.1')
    assert run('--robots', '20', '--seconds', '10', *batches, *chunks) == 0
    text = capsys.readouterr().out
    assert '  latency    22 robots per server' in text
    assert '\n5 servers, including one spare\nthe formula gives 2: it ignores' in text
    assert '\nbuy the larger number: 5\n' in text


def test_programs_get_one_object(capsys):
    told = as_json(capsys, *SMALL)
    assert list(told) == [
        'servers',
        'servers_without_spare',
        'limit',
        'reason',
        'fleet',
        'service',
        'formula',
        'curve',
    ]
    assert (told['servers'], told['servers_without_spare'], told['limit']) == (3, 2, 13)
    assert (told['reason'], told['formula']['servers']) == ('', 4)
    assert told['fleet']['buffer_s'] == 2.0
    holding = {point['servers']: point['is_enough'] for point in told['curve']}
    assert holding == {1: False, 2: False, 3: True, 4: True, 5: True}
    assert [bool(point['missed_goals']) for point in told['curve']] == [
        True,
        True,
        False,
        False,
        False,
    ]
    point = told['curve'][2]
    normal = point['normal']
    ended = normal['answered'] + normal['superseded'] + sum(normal['lost'].values())
    assert normal['requests'] == ended == pytest.approx(12 * 20, abs=12)
    assert normal['busy_share'] == pytest.approx(12 * 0.15 / 3, rel=0.05)
    assert 150 <= normal['latency_p50_ms'] <= normal['latency_p99_ms'] < 2000
    assert [share['robots'] for share in normal['servers']] == [4, 4, 4]


def test_the_same_command_says_the_same(capsys):
    assert as_json(capsys, *SMALL) == as_json(capsys, *SMALL)
    assert as_json(capsys, *SMALL) != as_json(capsys, *SMALL, '--seed', '2')


def test_what_is_not_given_is_as_in_the_nodes(capsys):
    fleet = as_json(capsys, '--robots', '2', '--inference-ms', '50')['fleet']
    edge, router = EdgeParameters(), RouterParameters()
    assert fleet['max_age_s'] == edge.max_action_age_s
    assert fleet['request_timeout_s'] == edge.request_timeout_s
    assert fleet['failover_s'] == router.reply_timeout_s
    assert fleet['buffer_s'] == pytest.approx(edge.request_threshold_s)


def test_with_the_buffer_of_an_edge_the_death_of_a_server_cannot_be_bridged(capsys):
    assert run('--robots', '2', '--inference-ms', '50') == 1
    told = capsys.readouterr().out
    assert 'is enough: 1 server is enough without a spare, but after the loss of a server' in told
    assert 'the buffer at a request is 0.5 s' in told
    assert run('--robots', '2', '--inference-ms', '50', '--failover-s', '0.3') == 0


def test_none_within_the_limit_is_status_1(capsys):
    assert run(*SMALL, '--max-servers', '1') == 1
    assert 'no number of servers is enough: not even 1: overload' in (capsys.readouterr().out)
    told = as_json(capsys, *SMALL, '--max-servers', '1')
    assert told['servers'] is None
    assert told['reason'].startswith('not even 1')


def test_a_network_that_is_too_slow_is_named(capsys):
    assert run(*SMALL, '--network-ms', '2500') == 1
    assert 'alone take 2.65 s, but the buffer at a request is 2 s' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('given', 'words'),
    [
        (('--robots', '0'), r'--robots must be in \[1, 10000\], got 0'),
        (('--inference-ms', '-3'), r'--inference-ms must be in \[0.1, 60000\], got -3'),
        (('--rate-hz', 'nan'), r'--rate-hz must be in \[0.01, 100\], got nan'),
        (('--fps', 'inf'), r'--fps must be in \[0.1, 1000\], got inf'),
        (('--per-more-ms', '151'), r'--per-more-ms must be in \[0, --inference-ms \(150\)\], got'),
        (('--seconds', '9'), r'--seconds must be in \[10, 166666\] .*, got 9'),
        (('--seconds', '100000', '--rate-hz', '2'), r'--seconds must be in \[5, 83333\]'),
        (('--robots', '10000', '--rate-hz', '90'), r'send 900000 requests per second'),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_one_line(given, words):
    with pytest.raises(ParameterError, match=words) as refused:
        run(*SMALL, *given)
    assert '\n' not in str(refused.value)


def test_a_rate_that_has_to_be_given_is_named():
    with pytest.raises(ParameterError, match='--rate-hz is required: a chunk plays for'):
        run('--robots', '2', '--inference-ms', '50', '--chunk-rows', '10')


@pytest.mark.parametrize(
    'arguments', [(), ('--robots', '3'), (*SMALL, '--robots', 'many'), (*SMALL, '--gpu')]
)
def test_a_wrong_command_line_is_status_2(arguments):
    try:
        assert main(['plan', *arguments]) == 2
    except SystemExit as ended:
        assert ended.code == 2


def test_the_help_has_an_example_that_works(capsys):
    from lerobot_serve.tools.cli.installed_verbs import installed_verbs
    from lerobot_serve.tools.cli.main import parser

    command = plan.EXAMPLE.removeprefix('example: lerobot-serve ').partition('  |')[0].split()
    options = parser(installed_verbs()).parse_args(command)
    assert (options.main, options.robots) == (plan.main, 300)
    with pytest.raises(SystemExit):
        parser(installed_verbs()).parse_args(['plan', '--help'])
    told = ' '.join(capsys.readouterr().out.split())
    assert 'example: lerobot-serve plan --robots 300 --inference-ms 150 --rate-hz 1' in told
    for option in ALL_OPTIONS:
        assert option.name in told


def test_it_needs_no_ros():
    code = (
        'import sys\n'
        'from lerobot_serve.tools.cli.main import main\n'
        'main(["plan", "--robots", "2", "--inference-ms", "9", "--rate-hz", "1"])\n'
        'sys.exit(any(name in sys.modules for name in ("rclpy", "torch")))'
    )
    assert subprocess.run([sys.executable, '-c', code], timeout=60).returncode == 0
