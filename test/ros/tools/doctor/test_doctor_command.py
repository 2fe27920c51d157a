# SPDX-License-Identifier: Apache-2.0
"""The command line of the doctor: exit statuses, text and JSON, mistakes of users, a real link."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.golden import form_of
from support.network.ports import free_port
from support.zenoh.access_rig import Keys, SITE

from lerobot_serve.ros.process.fastdds_profile import profile_variable
from lerobot_serve.tools.cli.main import main

NULL = ('--kind', 'null', 'joints=6,chunk=30,cameras=,fps=30')
QUICK = ('--wait-s', '0.2')


def run(*words: str, **variables: str) -> subprocess.CompletedProcess:
    """Run the verb in a process of its own, as a user does."""
    code = 'import sys; from lerobot_serve.tools.cli.main import main; sys.exit(main())'
    return subprocess.run(
        [sys.executable, '-c', code, 'doctor', *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def findings(output: str) -> dict[str, dict]:
    told = json.loads(output)
    return {f['name']: f for group in told['groups'] for f in group['findings']}


@pytest.mark.golden
def test_without_arguments_the_machine_is_looked_at(capsys, golden):
    main(['doctor', '--json', *QUICK])
    told = json.loads(capsys.readouterr().out)
    golden.holds('json_of_nodes/doctor.txt', form_of(told))
    assert [group['name'] for group in told['groups']] == [
        'environment',
        'policy',
        'robot',
        'topics',
        'ros2_control',
        'link',
        'capacity',
    ]
    assert {'outcome', 'counts', 'groups'} == set(told)
    assert [f['verdict'] for f in told['groups'][1]['findings']] == ['skipped']


def test_a_policy_is_looked_at_and_the_last_line_counts(capsys):
    main(['doctor', *QUICK, *NULL])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith('  ok    fingerprint: ') for line in lines)
    assert any(line.startswith('  ok    robots for one server: about ') for line in lines)
    assert any('p99' in line for line in lines)
    assert 'failure' in lines[-1]
    assert '\033' not in '\n'.join(lines)


def test_policy_and_robot_are_compared(sim_arm_yaml, capsys):
    assert main(['doctor', '--json', *QUICK, '--robot', str(sim_arm_yaml), *NULL]) == 1
    found = findings(capsys.readouterr().out)
    assert found['action names']['verdict'] == 'failure'
    assert found['cameras']['verdict'] == 'warning'
    assert found['rate']['verdict'] == 'ok'


def test_a_mistake_is_a_failure_with_its_remedy(capsys):
    assert main(['doctor', '--json', *QUICK, '--kind', 'nonsense', '/tmp']) == 1
    finding = findings(capsys.readouterr().out)['loads']
    assert finding['verdict'] == 'failure'
    assert "no policy kind 'nonsense'" in finding['found']
    assert finding['remedy']


@pytest.mark.parametrize(
    'words',
    [
        ('--wait-s', '0'),
        ('--wait-s', 'nan'),
        ('--wait-s', 'long'),
        ('--namespace', 'a b'),
        ('a', 'b'),
        ('--nonsense',),
    ],
)
def test_a_wrong_command_line_ends_with_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(['doctor', *words])
    assert ended.value.code == 2
    assert ': error: ' in capsys.readouterr().err


def test_a_wrong_parameter_of_the_server_is_one_line(capsys):
    assert main(['doctor', '--parameter', 'nonsense=1']) == 1
    assert capsys.readouterr().err.count('\n') == 1


@pytest.mark.slow
@pytest.mark.parametrize('domain', ['abc', '300'])
def test_a_domain_that_cannot_be_is_told_and_ros_not_started(domain):
    """ROS would end the process."""
    done = run('--json', *QUICK, *NULL, ROS_DOMAIN_ID=domain)
    assert done.returncode == 1, done.stderr
    found = findings(done.stdout)
    assert found['ROS_DOMAIN_ID']['verdict'] == 'failure'
    assert found['loads']['verdict'] == 'ok'
    assert 'Traceback' not in done.stderr


@pytest.mark.slow
def test_a_profile_that_is_not_there_is_found(tmp_path):
    gone = str(tmp_path / 'gone.xml')
    done = run('--json', *QUICK, **{profile_variable(): gone})
    assert done.returncode == 1, done.stderr
    found = findings(done.stdout)
    assert gone in found['profile of Fast DDS']['found']
    assert found['large messages']['verdict'] == 'failure'
    assert 'Unset' in found['large messages']['remedy']


def test_only_warnings_are_no_failure(monkeypatch, capsys):
    """The tests' own domain reaches this machine alone, which is a warning."""
    assert os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] == 'LOCALHOST'
    status = main(['doctor', '--json', *QUICK])
    told = json.loads(capsys.readouterr().out)
    assert told['counts']['warning'] >= 1
    assert status == (1 if told['counts']['failure'] else 0)


def link_findings(output: str) -> dict[str, dict[str, str]]:
    """Return the findings about the link by name."""
    groups = {group['name']: group['findings'] for group in json.loads(output)['groups']}
    return {finding['name']: finding for finding in groups['link']}


@pytest.mark.slow
def test_it_finds_the_server_at_its_site_alone(edge_rig, capsys):
    endpoint = f'tcp/127.0.0.1:{free_port()}'
    edge_rig.start_server(zenoh_listen=f"['{endpoint}']")
    command = ['doctor', '--json', '--wait-s', '1', '--connect', endpoint]
    main(command)
    findings = link_findings(capsys.readouterr().out)
    assert {name: each['verdict'] for name, each in findings.items()} == {
        endpoint: 'ok',
        'policy_server': 'ok',
    }
    assert findings['policy_server']['found'].startswith('null')
    assert main([*command, '--site', 'hall']) == 1
    findings = link_findings(capsys.readouterr().out)
    assert findings['servers']['verdict'] == 'failure'
    assert 'it has the site default' in ' '.join(findings['servers'].values())


@pytest.mark.slow
def test_under_access_control_it_finds_the_server_that_is_named(edge_rig, tmp_path, capsys):
    site, endpoint = Keys(tmp_path / 'keys'), f'tls/localhost:{free_port()}'
    robot = site.add('robot', 'robot_1')
    server = site.add('server', '/policy_server', direct=True)
    edge_rig.start_server(zenoh_listen=f"['{endpoint}']", zenoh_site=SITE, zenoh_keys=str(server))
    command = ['doctor', '--json', '--wait-s', '1', '--connect', endpoint, '--site', SITE]
    command += ['--keys', str(robot), '--client', 'robot_1']
    main([*command, '--server', '/policy_server'])
    findings = link_findings(capsys.readouterr().out)
    assert {name: each['verdict'] for name, each in findings.items()} == {
        'keys': 'ok',
        endpoint: 'ok',
        'policy_server': 'ok',
    }
    assert main(command) == 1
    findings = link_findings(capsys.readouterr().out)
    assert findings[endpoint]['verdict'] == 'ok'
    assert '--server' in findings['servers']['remedy']
