# SPDX-License-Identifier: Apache-2.0
"""Each trouble is found by its rule and by no other, and what explains most is named first."""

from __future__ import annotations

from pathlib import Path
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.replacing import replace
from support.tools.diagnosis_rig import (
    causes_of,
    command,
    Scene,
    scene,
    STALL_S,
    story_of,
    without_footer,
)

from lerobot_serve.tools.diagnosis import diagnose as rules
from lerobot_serve.tools.diagnosis import server_causes
from lerobot_serve.tools.diagnosis.diagnose import diagnose, GOOD_SHARE, RULES, RuleStatus
from lerobot_serve.tools.diagnosis.finding import (
    CauseFinding,
    explained_shares,
    length_s,
    union,
    without,
)
from lerobot_serve.tools.diagnosis.report import diagnosis_report, outcome
from lerobot_serve.tools.diagnosis.timeline import JoinedRequest, JoinKey, PeerRecord
from lerobot_serve.tools.diagnosis.window_facts import median_shift
from lerobot_serve.tools.output.text import parse_time_of_day
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.records import RequestRecord

NAMES = [rule.name for rule in RULES]
IN_THE_STALL = parse_time_of_day('2026-07-30T14:00:26Z')


@pytest.mark.parametrize('trouble', NAMES)
def test_a_planted_trouble_is_found_by_its_rule_and_no_other(trouble, tmp_path):
    # a cage that clamps stops no robot
    at = '14:00:26' if trouble == 'cage' else ''
    story = story_of(scene(trouble), tmp_path, at=at)
    assert causes_of(story) == [trouble]
    assert outcome(story) == 'explained'
    assert story.causes[0].evidence


def test_without_a_trouble_the_stall_is_not_told(tmp_path):
    story = story_of(scene(), tmp_path)
    assert (outcome(story), story.causes) == ('no_evidence', [])
    assert 'The traces hold no evidence' in diagnosis_report(story).as_text()
    assert {result.status for result in story.results} == {RuleStatus.RULED_OUT}


def test_a_server_that_lost_records_proves_no_lost_request(tmp_path):
    scene('request_lost').write(tmp_path)
    file = tmp_path / 'server.jsonl'
    complete = file.read_bytes()
    lossy = complete.replace(b'"records_lost":{}', b'"records_lost":{"trace_failed":3}')
    assert lossy != complete
    file.write_bytes(lossy)
    results = diagnose([tmp_path], 'robot_1').results
    (found,) = [each for each in results if each.rule.name == 'request_lost']
    assert found.status is RuleStatus.NO_EVIDENCE


def test_an_edge_that_lost_records_proves_no_lost_answer(tmp_path):
    made = scene()
    told = made.told['robot_1']
    # the edge tells nothing of a request that the server answered
    told.remove(next(r for r in told if r.get('seq') == 53))
    assert causes_of(story_of(made, tmp_path)) == ['reply_lost']
    made.write(tmp_path, {'robot_1': [b'{"kind":"request","seq":53\n']})
    assert not diagnose([tmp_path], 'robot_1').causes


def test_clocks_are_put_right_by_the_requests_that_both_tell_of(tmp_path):
    story = story_of(scene('server_overloaded'), tmp_path)
    ahead = {peer.node: round(peer.clock_offset_s, 1) for peer in story.facts.peers}
    assert ahead == {'/router': -2.5, '/server': 3.7}
    assert not story.facts.missing_traces


@pytest.mark.parametrize('waiting', range(7))
def test_a_server_is_overloaded_where_two_thirds_of_its_other_robots_wait(waiting, tmp_path):
    facts = story_of(scene('server_overloaded'), tmp_path).facts
    for peer in facts.peers:
        others = {f'other_{n}': ([2.0] * 9, [400.0 if n < waiting else 2.0]) for n in range(6)}
        peer.waits = {'robot_1': peer.waits.get('robot_1', ([], []))} | others
    assert server_causes.server_overloaded(facts).is_cause is (waiting >= 4)
    assert server_causes.own_queue_only(facts).is_cause is (waiting < 4)


def test_figures_say_how_many_and_the_middle_of_both(tmp_path):
    (found,) = story_of(scene('policy_slow'), tmp_path).causes
    assert found.evidence == (
        'inference before n 52 p50 40 ms, during n 2 p50 200 ms; explains 98% of the stall'
    )


def test_the_json_has_the_same_as_the_text(tmp_path):
    written = diagnosis_report(story_of(scene('network'), tmp_path)).data
    assert written['outcome'] == 'explained'
    # what explains the stall comes first
    assert [each['name'] for each in written['rules']] == sorted(NAMES, key='network'.__ne__)
    assert [each['summary'] for each in written['rules'] if each['status'] == 'found'] == [
        'The network was slow.'
    ]
    assert written['stalls'] == 1 and written['shown_stalls'][0]['length_s'] == 0.5


def test_what_is_usual_takes_three_and_growth_is_twice_as_much():
    assert not median_shift([1.0, 1.0], [100.0]).has_grown
    assert not median_shift([1.0, 1.0, 1.0], []).has_grown
    assert median_shift([1.0, None, 1.0, 1.0], [100.0]).has_grown
    assert not median_shift([1.0] * 3, [20.9]).has_grown
    assert not median_shift([100.0] * 3, [199.0]).has_grown
    assert (
        median_shift([100.0] * 3, [200.0]).text == 'before n 3 p50 100 ms, during n 1 p50 200 ms'
    )


def test_robots_that_come_are_named_once(tmp_path):
    made = scene()
    for name in ('robot_8', 'robot_9'):
        told = records.RequestRecord(
            0, *records.RecordIds(name, 1, 1).fields(), status='ok', queue_wait_ms=1.0
        )
        made.add('server', 25.0, told)
    facts = story_of(made, tmp_path).facts
    words = [each.text for each in facts.events if 'new clients' in each.text]
    assert words == ['2 new clients: robot_8, robot_9']


def test_a_server_that_was_killed_is_told_by_a_trace_that_breaks_off(tmp_path):
    made = scene('request_lost')
    made.write(tmp_path)
    file = tmp_path / 'server.jsonl'
    lines = file.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"seq":48' in line)
    file.write_bytes(b''.join(lines[:at]) + b'{"kind":"reque')
    (found,) = diagnose([tmp_path], 'robot_1').causes
    assert found.rule.name == 'session_lost'
    assert 'the trace of /server ends at 14:00:23.' in found.evidence


def test_an_edge_that_was_killed_missed_no_answer(tmp_path):
    made = scene()
    made.told['robot_1'] = [r for r in made.told['robot_1'] if r['mono_ns'] < 26.7e9]
    made.write(tmp_path)
    without_footer(tmp_path / 'robot_1.jsonl')
    story = diagnose([tmp_path], 'robot_1')
    assert outcome(story) == 'no_evidence'
    assert all(request.edge_record for request in story.facts.requests.values())


def test_parameters_are_those_of_the_window(tmp_path):
    made = scene('requests_start_late')
    for time_s, old, new in ((5.0, 0.4, 2.0), (39.95, 2.0, 0.1)):
        changed = records.ParameterRecord(0, name='request_threshold_s', old=old, new=new)
        made.add('robot_1', time_s, changed)
    assert not story_of(made, tmp_path).causes


@pytest.mark.slow
def test_memory_does_not_grow_with_what_lies_outside_of_the_window(tmp_path):
    def peak_of(folder: Path, copies: int) -> int:
        made = scene()
        made.write(folder)
        for node in made.told:
            file = folder / f'{node}.jsonl'
            lines = file.read_bytes().splitlines(keepends=True)
            hour_ns = -3_600_000_000_000
            much = [
                encode({**r, 'mono_ns': r['mono_ns'] + hour_ns}) for r in made.told[node][:100]
            ]
            file.write_bytes(b''.join([*lines[:-1], *(much * copies), lines[-1]]))
        tracemalloc.start()
        assert diagnose([folder], 'robot_1', at=IN_THE_STALL).facts
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_of(tmp_path / 'warm', 1)
    assert peak_of(tmp_path / 'long', 40) < 1.3 * peak_of(tmp_path / 'short', 1)


def test_steps_that_the_trace_lost_are_not_called_missed(tmp_path):
    scene('control_steps_missed').write(tmp_path, {'robot_1': [b'{"kind":"executed"\n']})
    story = diagnose([tmp_path], 'robot_1')
    (found,) = [result for result in story.results if result.rule.name == 'control_steps_missed']
    assert (found.status, story.causes) == (RuleStatus.NO_EVIDENCE, [])


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
