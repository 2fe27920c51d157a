# SPDX-License-Identifier: Apache-2.0
"""The checker of fault runs: one in which all is well, and one for each way to violate a rule."""

from __future__ import annotations

import ast
from collections.abc import Callable
import copy
import json
from pathlib import Path
import random

import pytest

from benchmarks.site import check, faults, operator

Run = dict[str, list[dict]]
SECOND = 1_000_000_000
IDS = {'client_id': 'robot_1', 'session_epoch': 7}


def end(seq: int, at_s: float, status: str = 'ok', **more: object) -> dict:
    made = {'kind': 'request', 'mono_ns': int(at_s * SECOND), **IDS, 'seq': seq}
    return {**made, 'status': status, 'episode_id': 'episode 1', 'policy': 'p@1', **more}


def seen(seq: int, way: str, flags: int = 0) -> dict:
    return {'way': way, 'client': 'robot_1', 'epoch': 7, 'seq': seq, 'flags': flags, 'mono_ns': 0}


def placement(
    router: str, at_s: float, slot: str = 'a', *, moved: bool = False, seq: int = 1
) -> dict:
    return {
        'kind': 'placement', 'mono_ns': int(at_s * SECOND), **IDS, 'seq': seq,
        'episode_id': 'episode 1', 'slot': slot, 'moved': moved, 'split_version': 3,
        'split_percent': 50, 'router': router,
    }  # fmt: skip


def header(role: str) -> dict:
    return {'kind': 'header', 'role': role, 'parameters': {'max_action_age_s': 3.0}}


def command(at_s: float, *words: str, status: int = 0) -> dict:
    """Return a command that took half a second."""
    began_ns = int(at_s * SECOND)
    return {
        'words': list(words), 'router': 'router_1', 'began_ns': began_ns,
        'ended_ns': began_ns + SECOND // 2, 'status': status,
    }  # fmt: skip


def later(router: str, at_s: float, slot: str = 'a', percent: int = 50) -> dict:
    """Return the placement of another episode."""
    return placement(router, at_s, slot) | {
        'episode_id': f'episode at {at_s}', 'split_percent': percent, 'split_version': percent
    }  # fmt: skip


def canary(at_s: float, event: str, share: int) -> dict:
    at_ns = int(at_s * SECOND)
    return {'kind': 'canary', 'mono_ns': at_ns, 'event': event, 'share_percent': share}


def sound_run() -> Run:
    """Three requests, of which the second was lost at a fault and the third changed the policy."""
    executed = {
        'kind': 'executed', 'mono_ns': 0, 'control_step': 1, 'rung': 'policy', 'age_s': 0.5,
        'commanded': [0.1],
    }  # fmt: skip
    return {
        'robot_1/edge.jsonl': [
            header('edge'),
            end(1, 1.0),
            end(2, 11.0, 'abandoned', reason='session_lost'),
            end(3, 12.0, policy='p@2'),
            executed,
        ],
        'router_1/router.jsonl': [header('router'), placement('1', 1.0), end(1, 1.0)],
        'router_2/router.jsonl': [header('router'), placement('2', 12.0, 'b', moved=True)],
        'a1/server.jsonl': [header('server'), end(1, 1.0)],
        'witness_robots.jsonl': [
            seen(1, 'request'),
            seen(1, 'reply'),
            seen(2, 'request'),
            seen(3, 'request'),
            seen(3, 'reply', check.POLICY_CHANGED),
        ],
        'faults.jsonl': [
            {
                'part': 'router', 'how': 'killed', 'name': 'router_1', 'began_ns': 10 * SECOND,
                'ended_ns': 11 * SECOND, 'recovered_ns': 12 * SECOND, 'has_recovered': True,
            }
        ],
        'operator.jsonl': [command(0.2, 'drain', 'b'), command(30.0, 'restore', 'b', status=1)],
    }  # fmt: skip


def judged(run: Run, folder: Path) -> check.Evidence:
    for name, records in run.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(''.join(f'{json.dumps(each)}\n' for each in records))
    return check.check(folder)


def test_a_sound_run_violates_nothing(tmp_path):
    found = judged(sound_run(), tmp_path)
    assert not any(found.violations.values()), found.violations
    assert found.counts['requests'] == 3
    assert found.counts['replies'] == 2
    assert found.counts['lost at router killed'] == 1
    assert found.counts['changes of a policy within an episode'] == 1
    assert found.counts['moved placements'] == 1


EDGE, WITNESS, SECOND_ROUTER = (
    'robot_1/edge.jsonl',
    'witness_robots.jsonl',
    'router_2/router.jsonl',
)
WAYS: dict[str, tuple[str, Callable[[Run], object]]] = {
    'a request without an end': ('ended', lambda run: run[EDGE].pop(2)),
    'two ends': ('ended', lambda run: run[EDGE].append(run[EDGE][1])),
    'seen on the wire only': ('ended', lambda run: run[WITNESS].append(seen(4, 'request'))),
    'known to a server only': ('ended', lambda run: run['a1/server.jsonl'].append(end(9, 1.0))),
    'known to a router only': ('ended', lambda run: run[SECOND_ROUTER].append(end(9, 1.0))),
    'a reply that only the robot saw': ('proven', lambda run: run[EDGE].append(end(4, 30.0))),
    'lost without a fault': (
        'explained',
        lambda run: run[EDGE].append(end(4, 30.0, 'timed_out')),
    ),
    'lost long after a fault': (
        'explained',
        lambda run: run[EDGE].append(end(4, 12.1 + check.AFTER_S, 'timed_out')),
    ),
    'a policy changes unflagged': ('flagged', lambda run: run[WITNESS][-1].update(flags=0)),
    'two slots for an episode': ('placed', lambda run: run[SECOND_ROUTER][1].update(moved=False)),
    'a version with two shares': (
        'one_split',
        lambda run: run[SECOND_ROUTER].append(
            placement('2', 13.0) | {'episode_id': 'episode 2', 'split_percent': 60}
        ),
    ),
    'a new episode in a drained slot': (
        'obeyed',
        lambda run: run[SECOND_ROUTER].append(later('2', 20.0, 'b')),
    ),
    'a new episode in a slot that was rolled back': (
        'obeyed',
        lambda run: (
            run['operator.jsonl'].extend(
                [command(40.0, 'rollout', 'abort'), command(50.0, 'rollout', 'undo')]
            ),
            run[SECOND_ROUTER].append(later('2', 45.0, 'b')),
        ),
    ),
    'another split than that of the operator': (
        'obeyed',
        lambda run: (
            run['operator.jsonl'].append(command(40.0, 'split', '70')),
            run[SECOND_ROUTER].append(later('2', 42.0, percent=60)),
        ),
    ),
    'a step that two routers take': (
        'led',
        lambda run: (
            run[SECOND_ROUTER].append(canary(20.0, 'started', 30)),
            run['router_1/router.jsonl'].append(canary(20.1, 'started', 30)),
        ),
    ),
    'a command that is not finite': (
        'safe',
        lambda run: run[EDGE][-1].update(not_finite=['commanded']),
    ),
    'an action that is too old': ('safe', lambda run: run[EDGE][-1].update(age_s=3.1)),
    'a robot does not go on': (
        'recovered',
        lambda run: run['faults.jsonl'][0].update(has_recovered=False),
    ),
}


@pytest.mark.parametrize('way', WAYS)
def test_each_violation_is_found(tmp_path, way):
    rule, damage = WAYS[way]
    run = copy.deepcopy(sound_run())
    damage(run)
    found = judged(run, tmp_path)
    assert [name for name, texts in found.violations.items() if texts] == [rule]


def test_what_a_robot_gives_up_after_a_long_wait_is_lost(tmp_path):
    run = sound_run()
    run[EDGE].append(end(4, 30.0, 'abandoned', reason='episode_started'))
    run[WITNESS].append({**seen(4, 'request'), 'mono_ns': int(28.5 * SECOND)})
    found = judged(run, tmp_path)
    assert found.violations['explained']
    run[WITNESS][-1]['mono_ns'] = int(29.5 * SECOND)
    found = judged(run, tmp_path)
    assert not any(found.violations.values())
    assert found.counts['given up by the robot: episode_started'] == 1


@pytest.mark.parametrize('part', [faults.Part.STORE, faults.Part.STORE_LINK])
def test_a_store_explains_no_loss(part, tmp_path):
    run = sound_run()
    run['faults.jsonl'][0]['part'] = part
    assert judged(run, tmp_path).violations['explained']


def test_an_empty_run_is_no_proof(tmp_path):
    assert judged({'faults.jsonl': [], 'operator.jsonl': []}, tmp_path).violations['whole']


def test_a_slot_without_a_placement_is_found(tmp_path):
    run = sound_run()
    run[SECOND_ROUTER].append(end(3, 30.0, routing={'slot': 'c'}))
    assert judged(run, tmp_path).violations['placed']


def test_an_unreadable_line_is_found_and_a_torn_last_one_is_counted(tmp_path):
    judged(sound_run(), tmp_path)
    server = tmp_path / 'router_1/router.jsonl'
    server.write_text(server.read_text() + '{"kind": "re')
    found = check.check(tmp_path)
    assert not any(found.violations.values())
    assert found.counts['torn last lines'] == 1
    server.write_text(server.read_text() + '\n{"kind": "state"}\n')
    assert check.check(tmp_path).violations['whole']


def test_the_time_in_which_a_loss_would_not_be_explained_is_counted():
    def fault(began_s: float, ended_s: float) -> dict:
        return {
            'began_ns': began_s * SECOND,
            'ended_ns': ended_s * SECOND,
            'recovered_ns': ended_s * SECOND,
        }

    # 10 to 12, of two at once the later one to 13, then 30
    run = [fault(10, 12), fault(10, 13), fault(30, 31), fault(33, 34)]
    assert check.seconds_without_fault(run) == 30 - 13 - check.AFTER_S


def test_the_checker_shares_nothing_with_the_package():
    tree = ast.parse(Path(check.__file__).read_text())
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported == {
        '__future__',
        'collections',
        'collections.abc',
        'dataclasses',
        'json',
        'pathlib',
        'sys',
        'typing',
    }


@pytest.mark.parametrize('seed', range(20))
def test_all_kinds_of_faults_come_before_the_first_one_again(seed):
    plans = list(faults.planned(50, random.Random(seed)))
    assert sum(map(len, plans)) == 50
    first = [(plan[0].part, plan[0].how) for plan in plans]
    assert set(first[: len(faults.KINDS)]) == set(faults.KINDS)
    assert all(len({fault.part for fault in plan}) == len(plan) for plan in plans)


@pytest.mark.parametrize(
    ('commands', 'slot', 'percent', 'at_s'),
    [
        ([command(40.0, 'drain', 'b', status=1)], 'b', 50, 45.0),
        ([command(40.0, 'drain', 'b')], 'b', 50, 41.4),
        ([command(40.0, 'drain', 'b'), command(44.0, 'restore', 'b', status=3)], 'b', 50, 45.0),
        ([command(40.0, 'split', '70'), command(44.0, 'split', '60', status=3)], 'a', 60, 45.0),
        ([command(40.0, 'split', '70'), command(44.0, 'rollout', 'start')], 'b', 30, 45.0),
        ([command(40.0, 'split', '70')], 'b', 70, 45.0),
    ],
    ids=['refused', 'within a second', 'may be restored', 'may be 60', 'a rollout', 'as it was'],
)
def test_what_no_command_forbids_is_no_violation(tmp_path, commands, slot, percent, at_s):
    run = sound_run()
    run['operator.jsonl'] += [command(35.0, 'restore', 'b'), *commands]
    run[SECOND_ROUTER].append(later('2', at_s, slot, percent))
    assert not judged(run, tmp_path).violations['obeyed']


@pytest.mark.parametrize(
    ('part', 'name', 'is_excused'),
    [
        ('store', 'store', True),
        ('router', 'router_2', True),
        ('link to the store', 'router_2_to_store', True),
        ('link to the store', 'router_1_to_store', False),
        ('router', 'router_1', False),
        ('server', 'a1', False),
        ('link', 'link', False),
    ],
)
def test_a_router_that_cannot_know_is_excused_and_counted(tmp_path, part, name, is_excused):
    run = sound_run()
    run['faults.jsonl'].append(
        {
            'part': part, 'how': 'cut', 'name': name, 'began_ns': 19 * SECOND,
            'ended_ns': 20 * SECOND, 'recovered_ns': 20 * SECOND, 'has_recovered': True,
        }
    )  # fmt: skip
    run[SECOND_ROUTER].append(later('2', 21.0, 'b'))
    found = judged(run, tmp_path)
    assert bool(found.violations['obeyed']) is not is_excused
    assert found.counts['new episodes at a router that could not know'] == is_excused


@pytest.mark.parametrize(('name', 'is_away'), [('router_2', True), ('router_1', False)])
@pytest.mark.parametrize(('seq', 'is_given_up'), [(2, True), (1, False), (9, False)])
def test_a_placement_that_no_robot_used_is_counted(tmp_path, name, is_away, seq, is_given_up):
    """The second request was given up; the first was answered, and the ninth is unknown."""
    run = sound_run()
    run['faults.jsonl'].append(
        {
            'part': 'link to the store', 'how': 'cut', 'name': f'{name}_to_store',
            'began_ns': 10 * SECOND, 'ended_ns': 11 * SECOND, 'recovered_ns': 11 * SECOND,
            'has_recovered': True,
        }
    )  # fmt: skip
    run[SECOND_ROUTER].insert(1, placement('2', 10.9, 'b', seq=seq))
    found = judged(run, tmp_path)
    is_excused = is_away and is_given_up
    assert bool(found.violations['placed']) is not is_excused
    text = 'placements that nobody used, at a router that could not know'
    assert found.counts[text] == is_excused


def test_a_rollout_that_begins_again_takes_its_steps_again(tmp_path):
    run = sound_run()
    run[SECOND_ROUTER] += [canary(20.0, 'started', 30), canary(21.0, 'rolled_back', 0)]
    run[SECOND_ROUTER] += [canary(22.0, 'restarted', 30), canary(23.0, 'started', 30)]
    assert not judged(run, tmp_path).violations['led']


def test_an_operator_does_all_that_the_checker_judges():
    words = [next(turn) for turn in [operator.turns(random.Random(1))] for _ in range(20)]
    for judged_words, (_, ends) in check.COMMANDS.items():
        for each in (judged_words, *ends):
            assert any(found[: len(each)] == each for found in words)
    assert {len(found) for found in words if found[0] == 'split'} == {2}
