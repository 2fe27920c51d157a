# SPDX-License-Identifier: Apache-2.0
"""The demo, as a newcomer runs it: what it claims is shown, and nothing is left running."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from support import leaks

from lerobot_serve.demo.tour.act_order import SERVING, TOURS
from lerobot_serve.entry_points import defer_signals
from lerobot_serve.tools.cli.installed_verbs import installed_verbs
from lerobot_serve.tools.cli.main import main, parser
from lerobot_serve.tools.processes import end_with_parent, executable_path

LIMIT_S = 300


def demo(*arguments: str) -> list[str]:
    return [str(executable_path('lerobot-serve')), 'demo', *arguments]


@pytest.mark.slow
def test_every_act_shows_its_point_and_the_audit_holds(tmp_path):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    # the canary that takes long is a matter of how many episodes there are
    command = demo(
        *('--robots', '2', '--acts', 'broken,kill', '--plan', '50:1,100', '--no-dashboard')
    )
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    folder = tmp_path / 'out' / 'demo'
    summary = json.loads((folder / 'summary.json').read_text())
    acts = summary['acts']
    assert tuple(acts) == tuple(TOURS[SERVING]), result.stdout + result.stderr
    # whether a robot waits for another server longer than its buffer lasts is a matter of how busy
    # the machine is; benchmarks/failover measures it, and all else is shown at any load
    assert all(acts[act]['shown'] for act in acts if act != 'kill'), result.stdout
    assert acts['kill']['shown'] == (acts['kill']['robots_stalled'] == 0)
    assert summary['ok'] == acts['kill']['shown']
    assert result.returncode == (0 if summary['ok'] else 1), result.stdout + result.stderr
    assert summary['audit']['violations'] == 0
    assert summary['audit']['without_end'] == 1
    # the counterpart of the same figure over Zenoh, which must be empty
    assert '/policy_router/observation' in acts['serve']['request_topics_over_ros']
    assert acts['kill']['longest_gap_ms'] > 0
    assert acts['kill']['back_after_s'] > acts['kill']['missed_after_s'] > 0
    assert acts['shadow']['divergence_rad'] > 0
    assert acts['broken']['why']
    assert acts['broken']['episodes_with_v3_a_second_later'] == 0
    assert summary['episodes']['v2']['successes'] >= 1
    logs = {name: (folder / f'{name}.log').read_text() for name in ('fleet', 'v2')}
    assert {summary['exit_status'][name] for name in logs} == {0}, logs
    check_commands(summary, result.stdout)
    page = (folder / 'report.html').read_text()
    assert page.count('<svg') == 5
    for mark in ('promoted', 'rolled back', 'killed', 'back'):
        assert mark in page
    assert 'reached' in (folder / 'arms.svg').read_text()


def check_commands(summary: dict, printed: str) -> None:
    """Check that each command was printed as it ran, that it worked, and that it has a parser."""
    whole = parser(installed_verbs())
    lines = printed.splitlines()
    for found in summary['commands']:
        assert f'$ {found["command"]}' in lines
        words = shlex.split(found['command'])
        if words[0] == 'kill':
            continue
        assert words[0].startswith('ROS_DOMAIN_ID=') and words[1] == 'lerobot-serve'
        options = whole.parse_args(words[2:])
        # `up` runs until the end
        assert found['status'] == (None if options.verb == 'up' else 0), found
        assert found['output'], found
        for line in found['output']:
            assert f'   | {line}' in lines


@pytest.mark.slow
def test_over_zenoh_no_request_goes_over_ros(tmp_path):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    # --phases is the name of --acts in 0.1
    command = demo(*('--robots', '1', '--link', 'zenoh', '--phases', 'serve', '--no-dashboard'))
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / 'out' / 'demo' / 'summary.json').read_text())
    assert summary['acts']['serve']['link'] == 'zenoh'
    assert summary['acts']['serve']['request_topics_over_ros'] == []
    assert summary['robots']['robot_1']['chunks'] > 0
    assert summary['exit_status'] == {'fleet': 0}


def test_without_eclipse_zenoh_the_remedy_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, 'zenoh', None)
    assert main(['demo', '--link', 'zenoh']) == 1
    assert capsys.readouterr().err == (
        'lerobot-serve: the Python package zenoh is missing; python3 -m pip install '
        'eclipse-zenoh==1.10.2\n'
    )
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(
    ('arguments', 'told'),
    [
        (['--acts', 'serve,fly'], "unknown act 'fly'; known: serve, shadow, kill"),
        (['--acts', 'kill,learn'], 'kill and learn belong to two fleets'),
        (['--robots', '0'], '--robots must be in [1, 20], got 0'),
        (['--seed', '-1'], '--seed must be at least 0, got -1'),
        (['--plan', '50,20,100'], '--plan'),
    ],
)
def test_a_wrong_word_is_refused_before_anything_starts(tmp_path, arguments, told):
    result = subprocess.run(
        demo(*arguments), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == (2 if ' must be ' in told else 1)
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / 'out').exists()


@contextlib.contextmanager
def running_demo(folder, *arguments: str):
    """Yield a demo and its log; it and all that it started are killed after the test."""
    log = folder / 'log'
    with log.open('w') as file:
        process = subprocess.Popen(
            end_with_parent(demo(*arguments)),
            cwd=folder,
            stdout=file,
            stderr=file,
            # SIGINT may be ignored here, which children inherit
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    try:
        yield process, log
    finally:
        for pid in leaks.children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_process_that_dies_ends_the_demo_and_is_named(tmp_path, wait_until):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    with running_demo(tmp_path, '--robots', '1', '--acts', 'serve') as (process, log):

        def routers() -> list[int]:
            return [
                pid
                for pid in leaks.children(process.pid)
                if 'lib/lerobot_serve/policy_router' in leaks.command(pid)
            ]

        # one look may miss it: the list of children is read while they are started
        victim, *_ = wait_until(routers, 'the router starts')
        os.kill(victim, signal.SIGKILL)
        assert process.wait(120) == 1, log.read_text()
    printed = log.read_text()
    assert 'STOPPED: router ended with signal SIGKILL' in printed
    assert 'see out/demo/fleet.log' in printed and 'Traceback' not in printed


PAGE_COMMAND = re.compile(
    r'\$ ROS_DOMAIN_ID=\d+ lerobot-serve dashboard --trace-folder out/demo/traces --token-file '
    r'out/demo/dashboard_token\n.*\n\$ ROS_DOMAIN_ID=\d+ lerobot-serve up out/demo/fleet.yaml\n'
)
# act -> a line after which it runs, and with which signal the demo is ended there
INTERRUPTED = {
    'serve': ('-> act 1', signal.SIGTERM),
    # while the dashboard runs, and v2 loads
    'shadow': ('-> act 2', signal.SIGINT),
}


@pytest.mark.slow
@pytest.mark.parametrize(('act', 'line', 'number'), [(k, *v) for k, v in INTERRUPTED.items()])
def test_a_signal_in_an_act_ends_the_demo_and_all_it_started(
    tmp_path, wait_until, act, line, number
):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    with running_demo(tmp_path, '--robots', '1', '--acts', act) as (process, log):
        wait_until(lambda: line in log.read_text(), 'the act runs', 120)
        wait_until(lambda: len(leaks.children(process.pid)) >= 4, 'processes run', 120)
        started = leaks.children(process.pid)
        process.send_signal(number)
        assert process.wait(120) == 130, log.read_text()
        assert not [pid for pid in started if leaks.command(pid) != 'gone']
    printed = log.read_text()
    assert 'Traceback' not in printed
    if act == 'shadow':
        # its command before all others, as it can be typed
        assert re.search(PAGE_COMMAND, printed), printed
        assert re.search(r'^dashboard: http://127\.0\.0\.1:\d+/#token=', printed, re.MULTILINE)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_a_new_process_is_noted(number):
    came, at = [], []
    before = signal.signal(number, lambda *_: at.append(len(came)))
    try:
        with defer_signals():
            signal.raise_signal(number)
            came.append('noted')
        assert at == [1]
        signal.raise_signal(number)
        assert at == [1, 1]
    finally:
        signal.signal(number, before)


def test_a_demo_that_cannot_write_says_so(tmp_path):
    (tmp_path / 'out').write_text('in the way')
    result = subprocess.run(demo(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert 'out/demo' in result.stderr
    assert 'Traceback' not in result.stderr
