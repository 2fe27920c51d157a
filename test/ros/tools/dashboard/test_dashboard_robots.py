# SPDX-License-Identifier: Apache-2.0
"""The dashboard with real edges: states, silence, one robot, commands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import json
import signal
from urllib.parse import quote

import pytest
from support.processes.stopped_process import halt

from lerobot_serve.zenoh.settings import ZenohSettings

ROBOT = '/robot_1/edge_controller'
# in the state of the robot, whatever its link
SERVER = '/policy_server'
pytestmark = pytest.mark.long


@pytest.mark.slow
def test_a_robot_is_shown_paused_and_resumed_by_two_operators(edge_rig, start_dashboard):
    edge_rig.start_server()
    edge_rig.start()
    dashboard = start_dashboard()
    viewer = dashboard.view()
    viewer.wait_for_robot(ROBOT, 'it streams', state='STREAMING', paused=False)
    viewer.wait(lambda d: d['servers'].get('/policy_server', {}).get('state') == 'ACTIVE', 'it')

    status, shown = dashboard.command('robot pause', ROBOT)
    assert status == 200 and shown['effect'] == 'do' and not shown['done']
    assert not viewer.document['robots'][ROBOT]['paused']

    # both press at the same moment: one does it, the other is refused or has nothing to do
    with ThreadPoolExecutor(2) as operators:
        replies = list(
            operators.map(
                lambda _: dashboard.command('robot pause', ROBOT, confirm=shown['text']), range(2)
            )
        )
    assert sorted(status for status, _ in replies) in ([200, 409], [200, 200]), replies
    done = next(reply for status, reply in replies if status == 200)
    assert done['by'].endswith('(dashboard)')
    if refused := [reply for status, reply in replies if status == 409]:
        assert 'Nothing was changed' in refused[0]['error']
    viewer.wait_for_robot(ROBOT, 'it is paused', paused=True)
    assert dashboard.command('robot pause', ROBOT)[1]['effect'] == 'nothing'
    assert dashboard.does('robot resume', ROBOT)['changes'] == ['paused: true -> false']
    viewer.wait_for_robot(ROBOT, 'it is resumed', paused=False)


@pytest.mark.slow
@pytest.mark.parametrize('link', ['ros', 'local'])
def test_one_robot_is_followed_only_while_somebody_looks(edge_rig, start_dashboard):
    edge_rig.start_server()
    edge_rig.start()
    dashboard = start_dashboard()
    dashboard.view().wait_for_robot(ROBOT, 'it streams', state='STREAMING')
    edge_rig.wait_for_play()
    address = f'/api/robots/image?robot={quote(ROBOT, safe="")}&camera=x&seq=1'
    assert dashboard.get(address)[0] == 404

    viewer = dashboard.view_robot(ROBOT)

    def found(key: str):
        events = list(viewer.events)
        return next((data[key] for name, data in events if name == 'append' and key in data), None)

    names = edge_rig.wait(lambda: found('names'), 'the names of its joints')
    executed = edge_rig.wait(lambda: found('executed'), 'its commands')
    plan = edge_rig.wait(lambda: found('plan'), 'its plan')
    images = edge_rig.wait(lambda: found('images'), 'its images')
    assert len(executed['commanded']) == len(names) == len(plan['actions'])
    assert executed['t_ms'] == sorted(executed['t_ms'])
    assert images['seq'] >= 1
    with dashboard_watch_ends(edge_rig, dashboard):
        viewer.close()
        dashboard._viewers.remove(viewer)


@pytest.mark.slow
@pytest.mark.parametrize('link', ['zenoh'])
def test_the_plan_and_the_requests_of_a_robot_over_zenoh_are_heard(edge_rig, start_dashboard):
    edge_rig.start_server()
    edge_rig.start()
    endpoint = edge_rig.fleet.links.endpoint('/policy_server')
    dashboard = start_dashboard(zenoh=ZenohSettings(connect=(endpoint,)))
    dashboard.view().wait_for_robot(ROBOT, 'it streams', state='STREAMING', server=SERVER)
    viewer = dashboard.view_robot(ROBOT)

    def found(key: str):
        events = list(viewer.events)
        return next((data[key] for name, data in events if name == 'append' and key in data), None)

    assert edge_rig.wait(lambda: found('plan'), 'its plan')['actions']
    assert edge_rig.wait(lambda: found('images'), 'its images')['seq'] >= 1


class dashboard_watch_ends:
    """After the block, the feed of the robot is closed."""

    def __init__(self, rig, dashboard) -> None:
        self._rig, self._dashboard = rig, dashboard

    def __enter__(self) -> None:
        assert self._dashboard.node._feeds.requests(ROBOT) is not None

    def __exit__(self, *_: object) -> None:
        self._rig.wait(
            lambda: self._dashboard.node._feeds.requests(ROBOT) is None, 'the feed is closed'
        )


@pytest.mark.slow
def test_a_robot_that_hangs_is_silent_and_lives_again(edge_rig, start_dashboard):
    edge_rig.start_server()
    edge = edge_rig.start()
    viewer = start_dashboard().view()
    viewer.wait_for_robot(ROBOT, 'it streams', state='STREAMING')
    halt(edge)
    try:
        silent = viewer.wait(
            lambda d: 'silent_since_ms' in d['robots'][ROBOT] and d['robots'][ROBOT], 'silence'
        )
        # the first one, and what it measured is not there
        assert silent['state'] == 'STREAMING' and silent['rank'] == 0
        assert not {'queue_s', 'action_age_s', 'round_trip_ms'} & set(silent)
        viewer.wait_for_incident('silent', 'error')
    finally:
        edge.send_signal(signal.SIGCONT)
    viewer.wait(lambda d: 'silent_since_ms' not in d['robots'][ROBOT], 'it is heard of again')
    viewer.wait_for_incident('silent', 'info')


@pytest.mark.slow
def test_a_robot_that_is_killed_is_silent_and_only_a_pause_is_tried(edge_rig, start_dashboard):
    edge_rig.start_server()
    edge = edge_rig.start()
    dashboard = start_dashboard()
    viewer = dashboard.view()
    viewer.wait_for_robot(ROBOT, 'it streams', state='STREAMING')
    edge_rig.kill(edge)
    viewer.wait(lambda d: 'silent_since_ms' in d['robots'][ROBOT], 'it is silent')
    status, reply = dashboard.command('robot resume', ROBOT, confirm='end its pause')
    assert status == 409 and 'is silent' in reply['error']
    shown = dashboard.command('robot pause', ROBOT)[1]['text']
    status, reply = dashboard.command('robot pause', ROBOT, confirm=shown)
    # DDS knows the service of a killed process for some seconds
    assert status in (409, 504) and 'stop button' in reply['error']
    status, reply = dashboard.command('robot pause', '/robot_9/edge_controller')
    assert status == 409 and 'Nothing was changed' in reply['error']


@pytest.mark.slow
def test_a_stall_is_explained_from_the_trace_of_the_robot(edge_rig, start_dashboard, tmp_path):
    traces = tmp_path / 'traces'
    server = edge_rig.start_server()
    edge_rig.start(trace_folder=traces, max_action_age_s=0.45, request_threshold_s=0.4)
    dashboard = start_dashboard(trace_folder=tmp_path)
    viewer = dashboard.view()
    viewer.wait_for_robot(ROBOT, 'it streams', state='STREAMING')
    edge_rig.wait_for_play()
    edge_rig.kill(server)
    viewer.wait_for_incident('stall', 'error')
    number = next(
        key for key, each in viewer.document['incidents'].items() if each['kind'] == 'stall'
    )

    def explained() -> str | None:
        text = json.loads(dashboard.get(f'/api/incidents?id={number}')[1])['explanation']
        # a trace is written some seconds after what it records
        return text if 'stall' in text else None

    text = edge_rig.wait(explained, 'the trace explains it')
    assert 'policy_server' in text and 'Traceback' not in text
