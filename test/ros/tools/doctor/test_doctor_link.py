# SPDX-License-Identifier: Apache-2.0
"""The doctor at a real policy server over Zenoh, and where there is none."""

from __future__ import annotations

import json

import pytest
from support.network.ports import free_port
from support.zenoh.access_rig import Keys, SITE

from lerobot_serve.tools.cli.main import main


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
