# SPDX-License-Identifier: Apache-2.0
"""
Two robots, a router and a server for forty seconds, in which one thing goes wrong.

Robot robot_1 stalls at 26 s whatever the trouble is. Each machine has a clock of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lerobot_serve.tools.diagnosis.diagnose import diagnose, Diagnosis
from lerobot_serve.tools.output.text import parse_time_of_day
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.records import Record, RecordIds, TraceRecord

WALL_S = 1_785_420_000.0
LENGTH_S, STEP_S, ASK_S = 40.0, 0.1, 0.5
ROUGH_S, STALL_S = (24.0, 28.0), (26.0, 26.5)
ROBOTS = ('robot_1', 'robot_2')
ROLES = {'robot_1': 'edge', 'robot_2': 'edge', 'router': 'router', 'server': 'server'}
# what the own clock of each machine counts from, and how far its wall clock is off
BOOTED_S = {'robot_1': 0.0, 'robot_2': 500.0, 'router': 77.0, 'server': 9000.0}
OFF_S = {'robot_1': 0.0, 'robot_2': 0.0, 'router': -2.5, 'server': 3.75}
PARAMETERS = {
    'fps': 10.0,
    'request_threshold_s': 0.4,
    'request_timeout_s': 1.0,
    'max_action_age_s': 3.0,
}
HELD = {
    'cage': ('clamped', 'pan: max_step'),
    'stale_state': ('held', 'state is missing or stale'),
}
# of a process, which notes it when it runs again
STILL_S = 24.5, 26.6


@dataclass
class Scene:
    """Records by node; `write` writes those that are left."""

    trouble: str = ''
    told: dict[str, list[Record]] = field(default_factory=lambda: {name: [] for name in ROLES})

    def add(self, node: str, time_s: float, record: TraceRecord | Record) -> None:
        fields = record if isinstance(record, dict) else records.fields_of(record)
        fields['mono_ns'] = int((time_s + BOOTED_S[node]) * 1e9)
        self.told[node].append(fields)

    def write(self, folder: Path, spoil: Mapping[str, list[bytes]] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        for node, told in self.told.items():
            lines = [encode(header(node)), *(encode(each) for each in told)]
            lines += (spoil or {}).get(node, [])
            (folder / f'{node}.jsonl').write_bytes(b''.join([*lines, encode(footer(node))]))


def story_of(
    made: Scene, folder: Path, client: str = 'robot_1', *, at: str = '', around_s: float = 10.0
) -> Diagnosis:
    """Write a scene and explain it."""
    made.write(folder)
    moment = parse_time_of_day(at) if at else None
    return diagnose([folder], client, at=moment, around_s=around_s)


def causes_of(story: Diagnosis) -> list[str]:
    return [result.rule.name for result in story.causes]


def without_footer(file: Path) -> None:
    """Change a trace to that of a process that was killed."""
    file.write_bytes(b''.join(file.read_bytes().splitlines(keepends=True)[:-1]))


def command(rung: str, reason: str = '', *, step: int = 0, result: str = 'pass') -> Record:
    """Return a command of robot_1, without its actions."""
    fields = {'control_step': step, 'cage_result': result, 'rung': rung, 'reason': reason}
    return {'kind': 'executed', 'client_id': 'robot_1', **fields}


def header(node: str) -> TraceRecord:
    return records.header(
        node=f'/{node}',
        role=ROLES[node],
        version='0',
        wall_s=WALL_S + OFF_S[node],
        now_ns=int(BOOTED_S[node] * 1e9),
        parameters=PARAMETERS if node in ROBOTS else {},
    )


def footer(node: str) -> TraceRecord:
    end_ns = int((BOOTED_S[node] + LENGTH_S) * 1e9)
    return records.FooterRecord(end_ns, records=0, records_lost={}, end_reason='closed')


def scene(trouble: str = '') -> Scene:
    """Return what is recorded; `trouble` is the name of the rule that has to find it."""
    made = Scene(trouble)
    for client in ROBOTS:
        for number in range(int(LENGTH_S / ASK_S)):
            _request(made, client, number)
        _commands(made, client)
    if trouble == 'router':
        ids = RecordIds('robot_1', 3, 50, 'episode')
        decision = records.PlacementRecord(
            0,
            *ids.fields(),
            slot='b',
            bucket=1,
            split_percent=50,
            moved=True,
            reason='slot a is down',
        )
        made.add('router', STALL_S[0], decision)
    if trouble == 'session_lost':
        _connection(made, ROUGH_S[0], 'reconnecting')
        _connection(made, STALL_S[1], 'streaming')
    if trouble in ('server_stopped', 'router_stopped'):
        length = f'{STILL_S[1] - STILL_S[0]:.3f} s'
        noted = records.StateRecord(
            0, component='process', before='still', after='runs', reason=length
        )
        made.add(trouble.removesuffix('_stopped'), STILL_S[1], noted)
    for told in made.told.values():
        told.sort(key=lambda record: record['mono_ns'])
    return made


def _connection(made: Scene, time_s: float, after: str) -> None:
    robot = RecordIds('robot_1')
    change = records.StateRecord(
        0,
        *robot.fields(),
        component='connection',
        before='streaming',
        after=after,
        reason='session_lost',
    )
    made.add('robot_1', time_s, change)


def _request(made: Scene, client: str, number: int) -> None:
    sent_s = number * ASK_S + 0.01
    is_rough = ROUGH_S[0] <= sent_s < ROUGH_S[1]
    trouble = made.trouble if is_rough or made.trouble == 'requests_start_late' else ''
    is_his = client == 'robot_1'
    way_ms = 450.0 if trouble in ('network', 'requests_start_late') and is_his else 6.0
    wait_ms = 2.0
    if trouble == 'server_overloaded' or (trouble == 'own_queue_wait' and is_his):
        wait_ms = 400.0
    work_ms = 200.0 if trouble == 'policy_slow' else 40.0
    ids = RecordIds(client, 3, number + 1, 'episode')
    parts = {'queue_wait_ms': wait_ms, 'processing_ms': 1.0, 'inference_ms': work_ms}
    whole_ms = way_ms + sum(parts.values())
    end_s = sent_s + whole_ms / 1e3
    refused = {'policy_failed': 'not_finite', 'quota_used_up': 'quota'}
    status = refused.get(trouble, 'ok') if is_his else 'ok'
    lost = is_his and trouble in ('superseded_requests', 'request_lost', 'reply_lost')
    is_still = is_his and trouble in ('server_stopped', 'router_stopped')
    lost |= is_still and STILL_S[0] <= sent_s < STILL_S[1]
    if lost:
        ended = records.RequestRecord(
            0, *ids.fields(), status='timed_out', reason='request_timeout'
        )
        made.add(client, sent_s + PARAMETERS['request_timeout_s'], ended)
    else:
        told = records.RequestRecord(
            0, *ids.fields(), status=status, round_trip_ms=whole_ms, **parts
        )
        made.add(client, end_s, told)
    if lost and (is_still or trouble == 'request_lost'):
        return
    if lost and trouble == 'superseded_requests':
        made.add(
            'server',
            end_s,
            records.RequestRecord(0, *ids.fields(), status='superseded', queue_wait_ms=2.0),
        )
        return
    made.add(
        'server',
        end_s - way_ms / 2e3,
        records.RequestRecord(0, *ids.fields(), status=status, **parts),
    )
    if not lost:
        is_moved = trouble == 'router' and is_his and sent_s >= STALL_S[0]
        replica = '/other' if is_moved else '/server'
        passed = records.RequestRecord(
            0,
            *ids.fields(),
            status=status,
            server=replica,
            round_trip_ms=whole_ms - way_ms / 2,
            **parts,
        )
        made.add('router', end_s - way_ms / 4e3, passed)


def _commands(made: Scene, client: str) -> None:
    trouble = made.trouble if client == 'robot_1' else ''
    control_step = 0
    for tick in range(int(LENGTH_S / STEP_S)):
        time_s = tick * STEP_S
        # a cage that clamps stops no robot, and a state that is missing stops it by itself
        is_stall = client == 'robot_1' and STALL_S[0] <= time_s < STALL_S[1]
        is_stall &= trouble not in HELD
        is_rough = ROUGH_S[0] <= time_s < ROUGH_S[1]
        if trouble == 'control_steps_missed' and is_rough and not is_stall and tick % 4:
            # no step that is missed has a number
            continue
        control_step += 1
        rung, why = ('ramp', 'ramp: nothing_to_play') if is_stall else ('policy', '')
        verdict, reason = HELD.get(trouble, ('pass', '')) if is_rough else ('pass', '')
        why = '; '.join(filter(None, (reason, why)))
        record = command(rung, why, step=control_step, result=verdict) | {'client_id': client}
        made.add(client, time_s, record)
