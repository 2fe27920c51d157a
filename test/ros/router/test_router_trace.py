# SPDX-License-Identifier: Apache-2.0
"""What a router writes down: who was sent where, and what came of it."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.tools.traces.reader import read_records


def records(folder: Path) -> list[dict]:
    (file,) = folder.glob('*.jsonl')
    return [record for _, record in read_records(file)]


def of_kind(folder: Path, kind: str) -> list[dict]:
    return [record for record in records(folder) if record['kind'] == kind]


def start_with_both_ready(router_rig, folder: Path) -> None:
    """Start a router when both slots serve, so that what it tells first is of both."""
    for slot in 'ab':
        router_rig.server(slot, slot)
    for slot in 'ab':
        router_rig.wait(lambda name=slot: ': serving ' in router_rig.log(name), f'{slot} serves')
    # nobody is to fail while its gate is closed
    router_rig.router(slot_a=['a'], slot_b=['b'], trace_folder=folder, reply_timeout_s=20.0)
    router_rig.wait_for_health('healthy')


def test_the_trace_tells_of_every_request_where_it_went(router_rig, tmp_path):
    folder = tmp_path / 'trace'
    start_with_both_ready(router_rig, folder)
    client = router_rig.robot()
    names = [router_rig.episode('a'), router_rig.episode('b')]
    for name in (*names, names[0]):
        client.round_trip(episode_id=name)
    client.round_trip(episode_id=names[1], task='nan')
    turns = router_rig.steerings['a'].turns
    turns.close_gate()
    client.request(episode_id=names[0])
    router_rig.wait(lambda: of_kind(folder, 'request')[3:], 'the fourth answer in the trace')
    client.request(episode_id=names[0])
    router_rig.wait_for_drop('superseded')
    turns.open_gate()
    assert client.take().header.seq == 6
    assert not router_rig.set(split_percent=70)
    router_rig.fleet.processes['router'].terminate()
    assert router_rig.fleet.processes['router'].wait(20) == 0

    (header,) = of_kind(folder, 'header')
    assert (header['schema_version'], header['role']) == (2, 'router')
    (told,) = of_kind(folder, 'policies')[:1]
    assert [policy['slot'] for policy in told['policies']] == ['a', 'b']
    assert {policy['policy_id'] for policy in told['policies']} == {'steered'}
    requests = of_kind(folder, 'request')
    assert [r['routing']['slot'] for r in requests] == ['a', 'b', 'a', 'b', 'a', 'a']
    assert [r['routing']['cached'] for r in requests] == [False, False, *[True] * 4]
    assert [r['routing']['routing_key'] for r in requests] == [*names, *names, names[0], names[0]]
    assert [r['status'] for r in requests] == [
        *['ok'] * 3,
        'not_finite',
        'superseded',
        'ok',
    ]
    assert [r['seq'] for r in requests] == [1, 2, 3, 4, 5, 6]
    assert requests[0]['policy'].startswith('steered@')
    assert requests[0]['server'] == '/a/policy_server'
    assert requests[0]['round_trip_ms'] >= requests[0]['inference_ms']
    assert [d['episode_id'] for d in of_kind(folder, 'placement')] == names
    (change,) = of_kind(folder, 'parameter')
    assert (change['name'], change['old'], change['new']) == ('split_percent', 50, 70)
    assert [state['to'] for state in of_kind(folder, 'state')][:1] == ['healthy']
    (footer,) = of_kind(folder, 'footer')
    assert footer['end_reason'] == 'closed'
