# SPDX-License-Identifier: Apache-2.0
"""Robots and policies by the verbs of an operator, with a real edge and a real server."""

from __future__ import annotations

import json
import signal

import pytest
from support.golden import form_of, Golden
from support.nodes.operator import one_client, Operator
from support.nodes.steering import Steering
from support.processes.stopped_process import halt
from support.tools.completion import completed

from lerobot_serve.tools.operate.names import operator_name
from lerobot_serve_interfaces.msg import EdgeState, ServerStatus

pytestmark = pytest.mark.long


@pytest.mark.slow
@pytest.mark.golden
def test_a_robot_is_listed_paused_and_resumed(edge_rig, capsys, monkeypatch, golden):
    operator = Operator(capsys)
    edge_rig.start_server()
    edge_rig.start()
    edge_rig.wait(lambda: edge_rig.seen.last.state == EdgeState.STREAMING, 'it streams')
    with one_client(monkeypatch):
        check_robot(operator, golden)
    assert not edge_rig.seen.last.paused


def check_robot(operator: Operator, golden: Golden) -> None:
    found = operator.reads('robots')
    golden.holds('json_of_nodes/robots.txt', form_of(found))
    (robot,) = found['robots']
    assert (robot['name'], robot['paused'], robot['client_id']) == ('robot_1', False, 'robot_1')
    assert 'did you mean robot_1?' in operator.is_refused_within('1', 'robot', 'robot_l', 'pause')
    assert 'not paused' in operator.does('robot', 'robot_1', 'resume')
    # a pause is not asked for: it stops the robot
    assert operator('robot', '/robot_1/edge_controller', 'pause') == 0, operator.error
    assert 'paused: false -> true' in operator.out
    golden.holds('json_of_nodes/robot.txt', form_of(operator.reads('robot', 'robot_1', 'pause')))
    assert 'paused already' in operator.does('robot', 'robot_1', 'pause')
    table = operator.prints('robots')
    assert table.splitlines()[-1].endswith(' (paused)')
    assert 'add --yes' in operator.needs_yes('robot', 'robot_1', 'resume')
    assert 'paused: true -> false' in operator.does('robot', 'robot_1', 'resume')
    assert 'robot_1 is not paused' in operator.does('robot', '--all', 'resume')
    assert operator('robot', '--all', 'pause', '--json') == 0
    golden.holds('json_of_nodes/robot_all.txt', form_of(json.loads(operator.out)))
    assert 'add --yes' in operator.needs_yes('robot', 'resume', '--all')
    assert '1 of 1 robots confirm it' in operator.does('robot', 'resume', '--all')
    assert 'Cage is not latched' in operator.is_refused('robot', 'robot_1', 'reset-cage', '--yes')
    told = operator.does('robot', 'robot_1', 'reset')
    # no state shows it, and who did it is printed
    assert 'The next episode starts' in told and f'by {operator_name()}' in told


@pytest.mark.slow
def test_a_robot_that_hangs_is_listed_first_and_only_a_pause_is_tried(edge_rig, capsys):
    operator = Operator(capsys)
    edge = edge_rig.start()
    edge_rig.start(namespace='/robot_2')
    edge_rig.wait(lambda: len(names(operator)) == 2, 'both robots')
    halt(edge)
    try:
        silent, other = operator.reads('robots')['robots']
        refusal = operator.is_refused('robot', 'robot_1', 'reset', '--yes')
        paused = operator('robot', 'robot_1', 'pause', '--timeout-s', '2'), operator.error
        all_paused = operator('robot', '--all', 'pause', '--timeout-s', '5'), operator.out
        table = operator.prints('robots')
    finally:
        edge.send_signal(signal.SIGCONT)
    assert (silent['name'], silent['state'], other['name']) == ('robot_1', 'SILENT', 'robot_2')
    assert other['state'] == 'CONNECTING'
    assert (silent['queue_remaining_s'], silent['round_trip_ms'], silent['rung']) == (None,) * 3
    assert 'robot_1 is silent' in refusal and 'stop button. Nothing was changed' in refusal
    # whether its service is discovered differs
    status, text = paused
    assert {3: 'did not reply', 1: 'nothing was sent'}[status] in text
    assert 'stop it at its power' in text
    # the robot that answers does not wait for the one that hangs, which is named
    status, lines = all_paused[0], all_paused[1].splitlines()
    assert status == 4 and len(lines) == 3
    assert lines[0].startswith('robot_2: ') and 'stop it at its power' not in lines[0]
    assert lines[1].startswith('robot_1: ') and 'stop it at its power' in lines[1]
    assert lines[2] == 'pause: 1 of 2 robots confirm it; not robot_1'
    assert [line.split()[1:3] for line in table.splitlines()[2:3]] == [['CONNECTING', '(paused)']]
    assert table.splitlines()[1].split()[:3] == ['robot_1', 'SILENT', '-']
    edge_rig.wait(lambda: 'SILENT' not in operator.prints('robots'), 'it is heard again')
    edge_rig.kill(edge)
    edge_rig.wait(lambda: 'SILENT' in operator.prints('robots'), 'it is missed')
    assert [each['name'] for each in operator.reads('robots', '--forget')['robots']] == ['robot_2']


@pytest.mark.slow
def test_the_old_state_of_a_robot_that_hangs_confirms_no_pause(edge_rig, capsys, monkeypatch):
    operator = Operator(capsys)
    edge = edge_rig.start()
    with one_client(monkeypatch):
        operator.does('robot', 'robot_1', 'pause')
        halt(edge)
        try:
            edge_rig.wait(lambda: 'SILENT' in operator.prints('robots'), 'it is missed')
            # the last state that the client has is paused
            status = operator('robot', 'robot_1', 'pause', '--timeout-s', '5')
            assert (status, 'did not reply' in operator.error) == (3, True)
        finally:
            edge.send_signal(signal.SIGCONT)


def names(operator: Operator) -> list[str]:
    if operator('robots', '--json', '--timeout-s', '5') != 0:
        return []
    return [each['name'] for each in json.loads(operator.out)['robots']]


@pytest.mark.parametrize('words', [('robots',), ('robot', 'robot_7', 'pause')])
def test_without_a_robot_the_error_names_what_to_check(words, capsys):
    operator = Operator(capsys)
    assert 'edge_controller runs' in operator.is_refused_within('0.2', *words)


@pytest.mark.slow
def test_a_shell_completes_the_names_of_live_robots(edge_rig, tmp_path):
    edge_rig.start()
    edge_rig.wait(lambda: edge_rig.seen.states, 'its state')
    assert completed('lerobot-serve robot robot_', tmp_path) == ['robot_1']
    assert completed('lerobot-serve robot robot_1 reset-', tmp_path) == ['reset-cage']
    assert 'promote' in completed('lerobot-serve rollout p', tmp_path)


@pytest.fixture
def new(tmp_path):
    made = Steering(tmp_path / 'new')
    yield made
    made.open_gates()
    made.end()


def test_a_policy_is_swapped_by_an_operator(rig, new, tmp_path, capsys, monkeypatch):
    rig.start(policy_kind='steered', policy_root=str(tmp_path))
    operator, before = Operator(capsys), rig.status().policy
    path = new.folder_path()
    with one_client(monkeypatch):
        assert 'add --yes' in operator.needs_yes('swap', '/policy_server', path)
        refusal = operator.is_refused('swap', '/policy_server', '/elsewhere', '--yes')
        assert 'copy the policy there. Nothing was changed' in refusal
        assert 'did you mean /policy_server?' in operator.is_refused_within(
            '1', 'swap', '/policy_servr', path, '--yes'
        )
        text = operator.does('swap', 'policy_server', path, '--wait')
    after = rig.status()
    assert after.policy != before
    assert f'policy: {before} -> {after.policy}' in text
    assert after.swap == ServerStatus.SWAP_DONE
