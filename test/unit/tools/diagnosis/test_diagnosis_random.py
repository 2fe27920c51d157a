# SPDX-License-Identifier: Apache-2.0
"""Whatever is left of the traces: nothing raises, and nothing is said that a lost one tells."""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import random
import tempfile
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest
from support.tools.diagnosis_rig import header, ROBOTS, ROLES, Scene, scene, story_of

from lerobot_serve.tools.diagnosis.diagnose import diagnose, RULES, RuleStatus
from lerobot_serve.tools.diagnosis.process_causes import SESSION_LOST
from lerobot_serve.tools.diagnosis.report import diagnosis_report, outcome
from lerobot_serve.tools.diagnosis.server_causes import POLICY_FAILURES, QUOTA
from lerobot_serve.tools.diagnosis.window_facts import BEFORE_MIN
from lerobot_serve.tools.output.text import parse_time_of_day
from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.records import Record

AT = parse_time_of_day('2026-07-30T14:00:26Z')
JUNK = [None, True, -1, 10**400, 1e300, -1e300, '', 'policy', '\x1b[2J', [], [1], {}, {'slot': 3}]
Told = dict[str, list[Record]]


def of_robot(told: Told, kind: str, *nodes: str) -> list[Record]:
    named = [record for node in nodes or told for record in told.get(node, ())]
    return [r for r in named if r.get('kind') == kind and r.get('client_id') in (None, 'robot_1')]


def has(field: str, *values: Any) -> Callable[[Told], bool]:
    return lambda told: any(
        r.get(field) in values for kind in KINDS for r in of_robot(told, kind) if field in r
    )


def has_figures(field: str) -> Callable[[Told], bool]:
    """So many requests tell of it as it takes to say what is usual, and one more."""
    return lambda told: (sum(field in r for r in of_robot(told, 'request')) > BEFORE_MIN)


KINDS = ('request', 'state', 'executed', 'placement')
# what must be in the records, somewhere, for a verdict to be allowed
EVIDENCE: dict[str, Callable[[Told], bool]] = {
    'server_overloaded': lambda told: (
        has_figures('queue_wait_ms')(told)
        and any(told.get('router', []) + told.get('server', []))
        and any(r.get('client_id') not in (None, 'robot_1') for node in told for r in told[node])
    ),
    'own_queue_wait': has_figures('queue_wait_ms'),
    'superseded_requests': has('status', 'superseded'),
    'policy_slow': has_figures('inference_ms'),
    'network': has_figures('round_trip_ms'),
    'policy_failed': has('status', *POLICY_FAILURES),
    'quota_used_up': has('status', QUOTA),
    'request_lost': lambda told: has('status', 'timed_out')(told) and bool(told.get('server')),
    'reply_lost': lambda told: bool(of_robot(told, 'request', 'server') and told.get('robot_1')),
    'router': lambda told: bool(told.get('router')),
    'session_lost': lambda told: (
        has('to', 'reconnecting', 'dead')(told) or has('status', *SESSION_LOST)(told)
    ),
    'cage': lambda told: any(
        r.get('cage_result') == 'clamped' for r in of_robot(told, 'executed')
    ),
    'stale_state': lambda told: any(
        r.get('cage_result') == 'held' for r in of_robot(told, 'executed')
    ),
    'server_stopped': has('component', 'process'),
    'router_stopped': has('component', 'process'),
    'control_steps_missed': lambda told: len(of_robot(told, 'executed', 'robot_1')) > 1,
    'requests_start_late': has_figures('round_trip_ms'),
}


def spoiled(trouble: str, seed: int, kept: float, junk: float, *, is_shuffled: bool) -> Scene:
    chance = random.Random(seed)
    made = scene(trouble)
    for node in list(made.told):
        if chance.random() < 0.15:
            del made.told[node]
            continue
        told = [record for record in made.told[node] if chance.random() < kept]
        for record in told:
            if chance.random() < junk:
                record[chance.choice(list(record)[1:])] = chance.choice(JUNK)
        if is_shuffled:
            chance.shuffle(told)
        made.told[node] = told
    return made


@given(
    trouble=st.sampled_from(['', *(rule.name for rule in RULES)]),
    seed=st.integers(0, 1 << 32),
    kept=st.sampled_from([1.0, 0.9, 0.5, 0.05, 0.0]),
    junk=st.sampled_from([0.0, 0.02, 0.5]),
    is_shuffled=st.booleans(),
)
@example(trouble='', seed=0, kept=0.0, junk=0.0, is_shuffled=False)
@settings(max_examples=40, deadline=None)
def test_nothing_raises_and_no_verdict_lacks_its_evidence(trouble, seed, kept, junk, is_shuffled):
    made = spoiled(trouble, seed, kept, junk, is_shuffled=is_shuffled)
    with tempfile.TemporaryDirectory() as name:
        made.write(Path(name))
        if not made.told:
            return
        for at in (AT, None):
            story = diagnose([name], 'robot_1', at=at)
            for result in story.causes:
                assert EVIDENCE[result.rule.name](made.told), result
            report = diagnosis_report(story)
            assert report.as_text().replace('\n', '').isprintable()
            json.dumps(report.data, allow_nan=False)


@given(
    cut=st.integers(0, 3000),
    places=st.lists(st.integers(0, 60_000), max_size=30),
    seed=st.integers(),
)
@settings(max_examples=20, deadline=None)
def test_bytes_of_no_sense_are_borne(cut, places, seed):
    made = scene('policy_slow')
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        made.write(Path(name))
        for file in Path(name).glob('*.jsonl'):
            data = bytearray(file.read_bytes())
            head = len(encode(header('robot_1'))) + 40
            for place in places:
                data[head + place % (len(data) - head)] = chance.randrange(256)
            file.write_bytes(bytes(data[: len(data) - cut]))
        story = diagnose([name], 'robot_1', at=AT)
        diagnosis_report(story).as_text()
        json.dumps(diagnosis_report(story).data, allow_nan=False)


def test_every_rule_has_evidence_here():
    assert EVIDENCE.keys() == {rule.name for rule in RULES}
    assert ROBOTS[0] == 'robot_1'


NAMES = [rule.name for rule in RULES]
# without the traces of these roles a rule must not say yes
NEEDS = {
    'server_overloaded': ('router', 'server'),
    'superseded_requests': ('router', 'server'),
    'router': ('router',),
    'network': ('edge',),
    'request_lost': ('edge',),
    'reply_lost': ('edge',),
    'session_lost': ('edge',),
    'cage': ('edge',),
    'control_steps_missed': ('edge',),
    'requests_start_late': ('edge',),
}


# a router that stands still and leaves no trace looks like a link that is cut
LOST_OTHERWISE = {'router_stopped': ('request_lost',)}


@pytest.mark.parametrize('trouble', NAMES)
@pytest.mark.parametrize('missing', ['edge', 'router', 'server', 'all but the edge'])
def test_nothing_is_said_without_the_trace_that_tells_it(trouble, missing, tmp_path):
    made = scene(trouble)
    for node, role in ROLES.items():
        is_kept = node == 'robot_1' if missing == 'all but the edge' else role != missing
        if not is_kept:
            del made.told[node]
    story = story_of(made, tmp_path, at='2026-07-30T14:00:26Z')
    there = {ROLES[node] for node in made.told}
    for result in story.causes:
        needs = NEEDS.get(result.rule.name, ())
        assert not needs or there & set(needs), result
        # another cause than the planted one is not invented where its witness is gone
        assert result.rule.name in (trouble, 'own_queue_wait', *LOST_OTHERWISE.get(trouble, ()))
    diagnosis_report(story).as_text()


def test_of_the_queue_of_others_nothing_is_told_without_a_server(tmp_path):
    made = scene('server_overloaded')
    del made.told['router'], made.told['server'], made.told['robot_2']
    story = story_of(made, tmp_path)
    says = {result.rule.name: result.status for result in story.results}
    assert says['server_overloaded'] is says['own_queue_wait'] is RuleStatus.NO_EVIDENCE
    assert outcome(story) == 'no_evidence'
    text = diagnosis_report(story).as_text()
    assert 'set trace_folder of policy_server' in text
    assert 'set trace_folder of policy_router' in text
