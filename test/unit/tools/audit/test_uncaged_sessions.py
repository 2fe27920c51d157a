# SPDX-License-Identifier: Apache-2.0
"""Sessions of a gateway are marked: nothing says what their callers executed."""

from __future__ import annotations

from dataclasses import replace
import json

from support.tools.audit_rig import drive, write

from lerobot_serve.client.settings import CLIENT_PREFIX
from lerobot_serve.gateway.callers.caller import CLIENT_PREFIX as GATEWAY_PREFIX
from lerobot_serve.tools.audit.checks.uncaged_sessions import UNCAGED
from lerobot_serve.tools.audit.engine import CheckStatus, run_audit
from lerobot_serve.tools.audit.report import audit_report

SENTENCE = '2 callers came through a gateway, without safety cage and fallback ladder'


def test_the_report_counts_sessions_without_a_cage_beside_those_of_robots(tmp_path):
    drive(1, client='robot_1').write(tmp_path / 'robot')
    for name in ('http/10.0.0.5:1', 'lerobot/10.0.0.6:1'):
        caller = drive(2, client=f'gateway/{name}')
        # no edge: the router alone records them
        write(tmp_path / name.partition('/')[0], 'router', 'router', caller.router, {}, 0)
    found = run_audit([tmp_path])
    assert found.outcome is CheckStatus.HOLDS
    assert found.uncaged.callers == 2
    sessions = found.uncaged.sessions
    assert sessions >= 2
    assert f'{sessions} sessions of {SENTENCE}' in audit_report(found).as_text()
    counts = audit_report(found).data['without_cage']
    assert json.loads(json.dumps(counts)) == {
        'callers': 2,
        'sessions': sessions,
        'through': 'a gateway',
    }


def test_callers_alone_are_no_proof_about_commands(tmp_path):
    caller = drive(3, client='gateway/http/10.0.0.5:1')
    write(tmp_path, 'router', 'router', caller.router, {}, 0)
    found = run_audit([tmp_path])
    outcomes = {result.check: result.outcome for result in found.results}
    assert outcomes['sticky'] is CheckStatus.HOLDS
    for check in ('age', 'finite', 'position', 'step', 'rows', 'one_in_flight', 'ended'):
        assert outcomes[check] is CheckStatus.NOT_JUDGED
    assert found.outcome is CheckStatus.HOLDS_AS_RECORDED
    assert 'not everything could be judged' in audit_report(found).as_text()


def test_robots_are_not_marked(tmp_path):
    drive(4, client='robot/gateway/1').write(tmp_path)
    found = run_audit([tmp_path])
    assert found.uncaged.text == ''
    assert 'gateway, without' not in audit_report(found).as_text()
    assert replace(found.uncaged, callers=1, sessions=1).text.startswith('1 session of 1 caller')


def test_a_python_client_is_named_as_what_its_sessions_came_through(tmp_path):
    for number, client in enumerate(('client/notebook', 'gateway/http/10.0.0.5:1')):
        caller = drive(number, client=client)
        write(tmp_path / str(number), 'router', 'router', caller.router, {}, 0)
    text = audit_report(run_audit([tmp_path])).as_text()
    assert '2 callers came through a gateway or the Python client, without safety cage' in text


def test_the_prefixes_are_those_that_callers_have():
    assert set(UNCAGED) == {GATEWAY_PREFIX, CLIENT_PREFIX}
