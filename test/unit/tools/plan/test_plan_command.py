# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve plan`: its command line, its table, its JSON and its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.verbs import plan
from lerobot_serve.tools.plan.command import ALL_OPTIONS

SMALL = ('--robots', '12', '--inference-ms', '150', '--rate-hz', '1', '--seconds', '20')


def as_json(capsys, *arguments: str) -> dict:
    main(['plan', *arguments, '--json'])
    return json.loads(capsys.readouterr().out)


TEXTS = {
    'small': SMALL,
    # the simulation needs more, so its number is the one to buy
    'batches': (
        *('--robots', '20', '--seconds', '10', '--inference-ms', '150', '--batch', '16'),
        *('--per-more-ms', '10', '--chunk-rows', '30', '--rate-hz', '2', '--network-ms', '0'),
        *('--failover-s', '0.1'),
    ),
    'sites': (*SMALL, '--sites', '2', '--robots', '25'),
}


@pytest.mark.golden
@pytest.mark.parametrize('name', TEXTS)
def test_people_get_the_reason_of_each_number(name, capsys, golden):
    assert main(['plan', *TEXTS[name]]) == 0
    text = capsys.readouterr().out
    golden.holds(f'plan/{name}.txt', text)
    assert text.isascii()
    assert max(map(len, text.splitlines())) < 140


def test_programs_get_one_object(capsys):
    told = as_json(capsys, *SMALL)
    assert (told['servers'], told['servers_without_spare'], told['limit']) == (3, 2, 13)
    assert (told['reason'], told['formula']['servers']) == ('', 4)
    assert told['fleet']['buffer_s'] == 2.0
    holding = {point['servers']: point['is_enough'] for point in told['curve']}
    assert holding == {1: False, 2: False, 3: True, 4: True, 5: True}
    assert all(bool(each['missed_goals']) is not each['is_enough'] for each in told['curve'])
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
    few = ('plan', '--robots', '2', '--inference-ms', '50')
    assert main([*few]) == 1
    told = capsys.readouterr().out
    assert 'is enough: 1 server is enough without a spare, but after the loss of a server' in told
    assert 'the buffer at a request is 0.5 s' in told
    assert main([*few, '--failover-s', '0.3']) == 0


def test_none_within_the_limit_is_status_1(capsys):
    assert main(['plan', *SMALL, '--max-servers', '1']) == 1
    assert 'no number of servers is enough: not even 1: overload' in (capsys.readouterr().out)
    told = as_json(capsys, *SMALL, '--max-servers', '1')
    assert told['servers'] is None
    assert told['reason'].startswith('not even 1')


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
        (('--sites', '0'), r'--sites must be in \[1, 1000\], got 0'),
        (('--sites', '13'), r'--sites must be in \[1, --robots \(12\)\], got 13'),
        (('--router-ms', 'nan'), r'--router-ms must be in \[0.001, 1000\], got nan'),
        (('--router-ms', '900'), r'one robot alone keeps a router busy for 90% of its time'),
        (('--store-ms', '0'), r'--store-ms must be in \[0.001, 1000\], got 0'),
        (('--episode-s', '0'), r'--episode-s must be in \[1, 100000\], got 0'),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_one_line(given, words, capsys):
    is_out_of_bounds = re.fullmatch(r'--[a-z-]+ must be in \\\[[0-9., ]+\\\], got \S+', words)
    assert main(['plan', *SMALL, *given]) == (2 if is_out_of_bounds else 1)
    said = capsys.readouterr().err
    assert re.search(words, said) and said.count('\n') == 1


def test_a_rate_that_has_to_be_given_is_named(capsys):
    assert main(['plan', '--robots', '2', '--inference-ms', '50', '--chunk-rows', '10']) == 1
    assert '--rate-hz is required: a chunk plays for' in capsys.readouterr().err


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
        assert option.flags[0] in told


def test_it_needs_no_ros():
    code = (
        'import sys\n'
        'from lerobot_serve.tools.cli.main import main\n'
        'main(["plan", "--robots", "2", "--inference-ms", "9", "--rate-hz", "1"])\n'
        'sys.exit(any(name in sys.modules for name in ("rclpy", "torch")))'
    )
    assert subprocess.run([sys.executable, '-c', code], timeout=60).returncode == 0
