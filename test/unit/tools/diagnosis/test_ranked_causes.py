# SPDX-License-Identifier: Apache-2.0
"""What explains most of a stall is named first, and what explains little of it is not a cause."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.tools.diagnosis_rig import (
    causes_of,
    command,
    Scene,
    scene,
    STALL_S,
    story_of,
    without_footer,
)

from lerobot_serve.tools.diagnosis import rules
from lerobot_serve.tools.diagnosis.causes.finding import (
    CauseFinding,
    explained_shares,
    length_s,
    union,
    without,
)
from lerobot_serve.tools.diagnosis.diagnose import diagnose
from lerobot_serve.tools.diagnosis.joined_request import JoinedRequest, JoinKey, PeerRecord
from lerobot_serve.tools.diagnosis.rules import GOOD_SHARE, RULES, RuleStatus
from lerobot_serve.trace.format.records import RequestRecord

MOMENTS = st.integers(0, 20).map(float)
SPANS = st.lists(st.tuples(MOMENTS, MOMENTS), max_size=5)


def instants(spans) -> set[float]:
    """Return the half seconds inside, in the place of a length."""
    return {n + 0.5 for n in range(20) if any(b <= n + 0.5 <= e for b, e in spans)}


@given(SPANS, SPANS)
def test_spans_are_sets_of_instants(some, others):
    assert instants(union(some)) == instants(some)
    assert length_s(union(some)) == len(instants(some))
    assert instants(without(union(some), others)) == instants(some) - instants(others)


@given(SPANS, st.lists(SPANS, max_size=4))
def test_each_instant_of_a_stall_belongs_to_the_first_cause_that_covers_it(stalls, causes):
    left, wanted = instants(stalls), []
    for spans in causes:
        wanted.append(len(left & instants(spans)) / (len(instants(stalls)) or 1))
        left -= instants(spans)
    assert explained_shares(stalls, causes) == pytest.approx(wanted)


@pytest.mark.parametrize('share', [0.0, GOOD_SHARE - 0.01, GOOD_SHARE, 1.0])
@pytest.mark.parametrize('is_cause', [None, False, True])
@pytest.mark.parametrize('number', range(len(RULES)))
def test_a_cause_needs_a_good_part_of_the_stall(number, is_cause, share, monkeypatch, tmp_path):
    length = STALL_S[1] - STALL_S[0]

    def other(facts) -> CauseFinding:
        return CauseFinding(False, 'no')

    def this(facts) -> CauseFinding:
        begin_s = facts.stalls[0].begin_s
        return CauseFinding(is_cause, 'figures', ((begin_s, begin_s + share * length + 1e-6),))

    table = [
        replace(rule, evaluate=this if n == number else other) for n, rule in enumerate(RULES)
    ]
    monkeypatch.setattr(rules, 'RULES', table)
    found = story_of(scene(), tmp_path)
    is_found = bool(is_cause) and share >= GOOD_SHARE
    assert causes_of(found) == [RULES[number].name] * is_found
    (result,) = [each for each in found.results if each.rule.name == RULES[number].name]
    assert (result.status is RuleStatus.NO_EVIDENCE) is (is_cause is None)
    if is_cause:
        assert f'explains {share:.0%} of the stall' in result.evidence


def with_one_slow_inference(made: Scene) -> None:
    """The reply that ends the stall took 29 ms of inference, usual are 6."""
    for record in made.told['robot_1']:
        if record['kind'] == 'request' and 'inference_ms' in record:
            record['inference_ms'] = 6.0
    last = next(r for r in made.told['robot_1'] if r.get('seq') == 54)
    last['inference_ms'], last['round_trip_ms'] = 29.0, 40.0


def test_one_inference_that_is_slower_does_not_explain_a_server_that_stood_still(tmp_path):
    made = scene('server_stopped')
    with_one_slow_inference(made)
    assert causes_of(story_of(made, tmp_path)) == ['server_stopped']


@pytest.mark.parametrize('has_ended', [False, True])
def test_a_session_that_is_lost_while_the_other_side_ran_was_cut_off(has_ended, tmp_path):
    made = scene('session_lost')
    for record in made.told['robot_1']:
        if record.get('component') == 'connection':
            record['reason'] = '/router: liveliness lease expired: killed or unreachable'
    if has_ended:
        # a trace without a footer proves nothing of the time after it
        made.told['router'] = [r for r in made.told['router'] if r['mono_ns'] < 101.5e9]
    made.write(tmp_path)
    if has_ended:
        without_footer(tmp_path / 'router.jsonl')
    named = 'session_lost' if has_ended else 'request_lost'
    assert causes_of(diagnose([tmp_path], 'robot_1')) == [named]


def test_one_request_is_no_evidence_without_a_stall(tmp_path):
    """A window of half a second holds one request, which is slower than usual."""
    made = scene('policy_slow')
    made.told['robot_1'] = [r for r in made.told['robot_1'] if r['kind'] == 'request']
    narrow = story_of(made, tmp_path, at='14:00:26.1', around_s=0.2)
    assert (len(narrow.facts.during), narrow.causes) == (1, [])
    assert causes_of(story_of(made, tmp_path, at='14:00:26', around_s=1.5)) == ['policy_slow']


def test_commands_held_without_a_state_and_after_the_episode_are_no_clamps(tmp_path):
    """A starved edge holds for its state, and rests between episodes: the policy is in order."""
    made = scene('stale_state')
    for time_s in range(20):
        why = 'pan: max_step; hold: no_episode'
        rest = command('hold', why, step=1000 + time_s, result='clamped')
        made.add('robot_1', 28.0 + time_s / 10, rest)
    made.told['robot_1'].sort(key=lambda record: record['mono_ns'])
    found = story_of(made, tmp_path)
    assert causes_of(found) == ['stale_state']
    cage = next(v for v in found.results if v.rule.name == 'cage')
    assert '0 of' in cage.evidence.partition('before, ')[2]


def test_missed_steps_come_from_the_time_since_their_numbers_skip_none(tmp_path):
    made = scene('control_steps_missed')
    steps = [r['control_step'] for r in made.told['robot_1'] if r['kind'] == 'executed']
    assert steps == list(range(1, len(steps) + 1))
    (found,) = story_of(made, tmp_path).causes
    assert 'control steps missed: 0 before' in found.evidence
    assert 'at most 0.40 s at a time' in found.evidence


@pytest.mark.parametrize('status', ['ok', 'no_slot', 'no_session', 'draining', 'quota'])
def test_a_reply_of_the_router_says_nothing_of_the_server(status):
    """It had no chunk within its time limit: what the late server did is in the server's trace."""
    edge = RequestRecord(status=status, inference_ms=51.0 if status == 'ok' else 0.0)
    server = PeerRecord(1, 0.0, RequestRecord(status='ok', inference_ms=1300.0))
    request = JoinedRequest(JoinKey(1, 1), 0.0, edge, server_records=[server])
    assert request.inference_ms == (51.0 if status == 'ok' else 1300.0)
