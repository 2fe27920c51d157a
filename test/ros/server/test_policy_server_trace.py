# SPDX-License-Identifier: Apache-2.0
"""What a policy server writes down, counts and captures: a real one, with everything on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
import signal
from urllib.error import HTTPError

import numpy as np
import pytest
from std_srvs.srv import Trigger
from support.network.metrics_page import metrics, page
from support.network.ports import free_port

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.schema import Codec, Status
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve.trace.format.incident_file import read_incident

FRAME = image_codec.encode('front', np.zeros((4, 6, 3), np.uint8), Codec.RAW)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def started(rig, tmp_path, port):
    """A server with everything on; returns its process."""
    return rig.start(
        policy_kind='steered',
        slot='a',
        metrics_port=port,
        trace_folder=tmp_path / 'trace',
        trace_images='hash',
        capture_folder=tmp_path / 'captures',
    )


def trace(folder: Path) -> dict[str, list[dict]]:
    """Return the records by their kind."""
    kinds: dict[str, list[dict]] = {}
    (file,) = (folder / 'trace').glob('*.jsonl')
    for _, record in read_records(file):
        kinds.setdefault(record['kind'], []).append(record)
    return kinds


def captures(folder: Path) -> dict[str, Path]:
    """Return the files by why they were written."""
    files = (folder / 'captures').glob('*.safetensors')
    return {path.stem.rpartition('-')[2]: path for path in files}


def test_everything_that_happens_is_written_down_counted_and_captured(
    rig, started, port, tmp_path, log_of_rig
):
    client = rig.client()
    for task in ('one', 'nan', 'two', 'raise'):
        client.round_trip(task=task, images=(FRAME,))
    client.send(wire_observation.encode(client.observation(client_id='stranger')))
    rig.wait_for_drop('no_session')
    assert not rig.set(max_sessions=7)
    client.round_trip()
    captured = rig.ask(Trigger, 'capture', Trigger.Request())
    assert captured.success, captured.message
    assert not rig.ask(Trigger, 'capture', Trigger.Request()).success
    rig.wait(lambda: len(captures(tmp_path)) == 3, 'the captures are written')
    now = metrics(port, 'lerobot_serve_server_')
    assert client.close().closed
    started.send_signal(signal.SIGINT)
    assert started.wait(20) == 0
    expect_records(trace(tmp_path), client)
    expect_metrics(now)
    expect_captures(captures(tmp_path), captured.message, client)
    assert 'Traceback' not in log_of_rig('policy_server')


def expect_records(kinds, client) -> None:
    (header,), (footer,) = kinds['header'], kinds['footer']
    assert (header['role'], header['parameters']['slot']) == ('server', 'a')
    assert footer['end_reason'] == 'closed'
    assert footer['records_lost'] == {}
    assert 'damaged' not in kinds
    requests = kinds['request']
    status = [request['status'] for request in requests]
    assert status == ['ok', 'not_finite', 'ok', 'policy_error', 'ok']
    assert [request['seq'] for request in requests] == [1, 2, 3, 4, 6]
    assert [request.get('task') for request in requests[:4]] == ['one', 'nan', 'two', 'raise']
    for request in requests:
        assert (request['client_id'], request['session_epoch']) == ('tester', 1)
        assert request['episode_id'] == 'episode-1'
        assert request['routing'] == {'slot': 'a'}
        assert request['policy'].startswith('steered@')
        assert request['request_bytes'] > 0
        assert request['chunk_bytes'] > 0
    assert len(requests[0]['images'][0]['sha256']) == 64
    assert [state['to'] for state in kinds['state'] if state['component'] == 'server'] == [
        'inactive',
        'active',
        'draining',
        'inactive',
    ]
    sessions = [state for state in kinds['state'] if state['component'] == 'session']
    assert [(s['client_id'], s['to'], s.get('reason')) for s in sessions] == [
        ('tester', 'open', None),
        ('tester', 'closed', 'closed by the client'),
    ]
    (served,) = kinds['policies']
    assert [(p['slot'], p['policy_id']) for p in served['policies']] == [('a', 'steered')]
    (change,) = kinds['parameter']
    assert (change['name'], change['old'], change['new']) == ('max_sessions', 16, 7)
    assert Counter(incident['name'] for incident in kinds['incident']) == {
        'not_finite': 1,
        'policy_error': 1,
        'captured': 3,
    }
    assert [(drop['reason'], drop['count']) for drop in kinds['drop']] == [('no_session', 1)]


def expect_metrics(now) -> None:
    assert now['requests_total', 'a'] == 5
    assert now['chunks_total', 'a'] == 3
    for name in ('reply_latency', 'queue_wait', 'inference'):
        assert now[f'{name}_seconds_count', 'a'] == 3
    assert now['batch_size_count', 'a'] == 5
    assert now['dropped_total', 'not_finite', 'a'] == 1
    assert now['dropped_total', 'no_session', 'a'] == 1
    assert (now['sessions', 'a'], now['max_sessions', 'a']) == (1, 7)
    assert now['in_flight_requests', 'a'] == 0


def expect_captures(files, message, client) -> None:
    assert set(files) == {'not_finite', 'policy_error', 'operator'}
    assert message == f'captured into {files["operator"]}'
    nan = read_incident(files['not_finite'])
    assert [pair.info['status'] for pair in nan.pairs] == ['ok', 'not_finite']
    assert (nan.about['client_id'], nan.about['seq']) == ('tester', 2)
    assert nan.about['parameters']['policy_kind'] == 'steered'
    request, answer, info = nan.pairs[-1]
    assert wire_observation.decode(request).task == 'nan'
    assert wire_chunk.decode(answer).status == Status.NOT_FINITE
    assert (info['seq'], info['session_id']) == (2, 'tester#00000001')
    # a request stands in one file
    raised, asked = (read_incident(files[name]).pairs for name in ('policy_error', 'operator'))
    assert [pair.info['seq'] for pair in (*raised, *asked)] == [3, 4, 6]


def test_a_server_that_is_killed_loses_no_more_than_the_last_moment(rig, started, tmp_path):
    client = rig.client()
    for _ in range(20):
        client.round_trip()
    (file,) = (tmp_path / 'trace').glob('*.jsonl')
    rig.wait(lambda: file.read_bytes().count(b'"kind":"request"') == 20, 'all is written')
    client.request()
    started.kill()
    started.wait(20)
    kinds = trace(tmp_path)
    assert [record['seq'] for record in kinds['request']][:20] == list(range(1, 21))
    assert 'footer' not in kinds
    assert [record['reason'] for record in kinds.get('damaged', [])] in ([], ['torn'])


def test_alive_and_ready_are_told_apart(rig, port):
    rig.start('unconfigured', policy_kind='steered', autostart=False, metrics_port=port)
    assert page(port, '/healthz') == 'alive\n'
    with pytest.raises(HTTPError) as error:
        page(port, '/readyz')
    assert error.value.code == 503
    assert 'no policy is loaded' in error.value.read().decode()
    assert rig.change_state('configure')
    with pytest.raises(HTTPError):
        page(port, '/readyz')
    assert rig.change_state('activate')
    assert page(port, '/readyz') == 'ready\n'


def test_a_policy_that_cannot_be_loaded_is_told_with_the_reason(tmp_path, processes):
    process = processes.start(
        'server', 'policy_server', policy_kind='nothing', trace_folder=tmp_path
    )
    assert process.wait(20) == 1
    (file,) = tmp_path.glob('*.jsonl')
    records = [record for _, record in read_records(file)]
    (failed,) = [record for record in records if record['kind'] == 'state']
    assert failed['to'] == 'failed'
    assert "there is no policy kind 'nothing'" in failed['reason']
    assert (records[-1]['kind'], records[-1]['end_reason']) == ('footer', 'closed')
