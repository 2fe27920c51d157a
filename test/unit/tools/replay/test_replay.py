# SPDX-License-Identifier: Apache-2.0
"""What was recorded is asked again on the terms of its sessions, and compared."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.paths import PLUGINS
from support.replacing import replace
from support.tools.bag_rig import open_session_event, write
from support.tools.replay_rig import (
    answered,
    as_messages,
    counts,
    episodes,
    OTHER_SHAPE,
    record,
    replay,
    request,
)

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.header import FLAGS_AT, read_envelope
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Flag, MsgType, Status
from lerobot_serve.tools.bags.message import BagMessage, CHUNK, OBSERVATION, OPEN_SESSION
from lerobot_serve.tools.bags.request_pairs import RequestPairer, REQUESTS_KEPT
from lerobot_serve.tools.replay.engine import (
    compare_replies,
    MatchLevel,
    PolicySummary,
    ReplayResult,
)
from lerobot_serve.tools.replay.report import exit_status as status_of
from lerobot_serve.tools.replay.report import replay_report
from lerobot_serve.tools.replay.sources import open_source, ReplayError
from lerobot_serve.trace.format import incident_file


def changed(raw: bytes, **changes: object) -> bytes:
    return wire_chunk.encode(replace(wire_chunk.decode(raw), **changes))


def moved(raw: bytes, way: float) -> bytes:
    """Return an answer of which one number is another one."""
    robot = wire_chunk.decode(raw).robot.copy()
    robot[1, 1] += way
    return changed(raw, robot=robot)


@pytest.mark.parametrize('kind', ['null', 'recurrent'])
def test_the_same_policy_gives_the_same_bits(tmp_path, kind):
    pairs = answered(episodes(3) + episodes(2, client='robot_2'), kind)
    result = replay(record(tmp_path, pairs), kind)
    assert counts(result) == (20, 0, 0, 0)
    assert not result.is_other_policy
    assert (result.without_reply, result.others, result.notes) == (0, 0, [])
    assert 'ANOTHER' not in replay_report(result, 'beyond').as_text()


def test_robots_that_ask_in_turn_keep_their_hidden_states(tmp_path):
    one, other = episodes(2), episodes(2, client='robot_2')
    mixed = [raw for pair in zip(one, other, strict=True) for raw in pair]
    result = replay(record(tmp_path, answered(mixed, 'recurrent')), 'recurrent')
    assert counts(result) == (16, 0, 0, 0)


@pytest.mark.parametrize(
    ('way', 'expected'), [(1e-6, (7, 1, 0, 0)), (1e-2, (7, 0, 1, 0)), (np.nan, (7, 0, 1, 0))]
)
def test_what_differs_is_found(tmp_path, way, expected):
    pairs = answered(episodes(2))
    pairs[3] = pairs[3][0], moved(pairs[3][1], way)
    result = replay(record(tmp_path, pairs))
    assert counts(result) == expected
    (found,) = result.summaries.values()
    assert found.largest_at == ('robot_1', 1, 4)
    assert 'request 4 of robot_1' in replay_report(result, 'beyond').as_text()


def test_the_tolerance_is_the_users(tmp_path):
    pairs = answered(episodes(1))
    pairs[0] = pairs[0][0], moved(pairs[0][1], 1e-2)
    bag = record(tmp_path, pairs)
    assert counts(replay(bag, tolerance=0.1)) == (3, 1, 0, 0)
    assert counts(replay(bag, tolerance=0.0)) == (3, 0, 1, 0)


def test_another_policy_is_what_it_would_have_done(tmp_path):
    bag = record(tmp_path, answered(episodes(2)))
    result = replay(bag, 'recurrent')
    assert result.is_other_policy
    told = replay_report(result, 'beyond').data
    (slot,) = told['slots']
    assert told['is_other_policy']
    assert set(slot['divergence_per_action']) == {f'joint_{i}.pos' for i in range(3)}
    assert slot['divergence_per_action']['joint_0.pos']['max'] > 0
    assert 'ANOTHER POLICY' in replay_report(result, 'beyond').as_text()
    json.dumps(told, allow_nan=False)


def test_a_longer_chunk_is_no_equal(tmp_path):
    bag = record(tmp_path, answered(episodes(1)))
    result = replay(bag, shape=OTHER_SHAPE)
    assert counts(result) == (0, 0, 4, 0)
    assert '(5, 3) actions recorded, (7, 3) replayed' in replay_report(result, 'beyond').as_text()


def test_answers_of_other_policies_are_left_out(tmp_path):
    pairs = answered(episodes(1))
    shadow = [(asked, changed(raw, policy='shadow@1', slot='b')) for asked, raw in pairs]
    messages = as_messages(pairs)
    chunks = [m for m in as_messages(shadow) if m.type == CHUNK]
    messages += [m._replace(topic='/r/replies/shadow') for m in chunks]
    result = replay(write(tmp_path / 'bag', messages))
    assert counts(result) == (4, 0, 0, 0)
    assert result.others == 4


def test_a_request_that_was_recorded_twice_is_asked_once(tmp_path):
    pairs = answered(episodes(1), 'recurrent')
    messages = as_messages(pairs)
    twice = [each for m in messages for each in (m, m._replace(topic=m.topic + '_router'))]
    result = replay(write(tmp_path / 'bag', twice), 'recurrent')
    assert counts(result) == (4, 0, 0, 0)


def test_an_answer_may_stand_before_its_request(tmp_path):
    messages = as_messages(answered(episodes(2), 'recurrent'))
    swapped = [m for i in range(0, len(messages), 2) for m in (messages[i + 1], messages[i])]
    assert counts(replay(write(tmp_path / 'bag', swapped), 'recurrent')) == (8, 0, 0, 0)


def test_what_has_no_other_half_is_counted(tmp_path):
    pairs = answered(episodes(1))
    pairs[1] = pairs[1][0], b''
    messages = as_messages(pairs)[1:]
    result = replay(write(tmp_path / 'bag', messages))
    assert counts(result) == (2, 0, 0, 0)
    assert result.without_reply == 1
    assert result.notes == ['replies without a request in the bag: 1']


def test_pairs_wait_for_so_long_only():
    pairs = RequestPairer()
    for seq in range(1, REQUESTS_KEPT + 6):
        pairs.add(BagMessage('/o', OBSERVATION, seq, request(seq)))
    assert pairs.without_reply == 5
    pairs.finish()
    assert pairs.without_reply == REQUESTS_KEPT + 5


def test_nonsense_is_counted():
    pairs = RequestPairer()
    for kind in (OBSERVATION, CHUNK, 'std_msgs/msg/String'):
        assert pairs.add(BagMessage('/o', kind, 1, b'nonsense')) == []
    assert pairs.malformed == 2


def test_a_recording_that_begins_within_an_episode(tmp_path):
    pairs = answered(episodes(2), 'recurrent')[2:]
    result = replay(record(tmp_path, pairs), 'recurrent')
    # what is left of the first episode cannot be known, the second can
    assert counts(result) == (4, 0, 0, 2)
    assert 'begins within the episode' in replay_report(result, 'beyond').as_text()


def test_a_hidden_state_that_was_lost_then_is_lost_again(tmp_path):
    requests = episodes(1)
    # a server that was started anew in the middle
    pairs = answered(requests[:2], 'recurrent') + answered(requests[2:], 'recurrent')
    assert wire_chunk.decode(pairs[2][1]).header.flags & Flag.STATE_LOST
    assert counts(replay(record(tmp_path, pairs), 'recurrent')) == (4, 0, 0, 0)


def test_what_the_policy_was_not_asked_is_not_asked_now(tmp_path):
    pairs = answered(episodes(1))
    late = changed(pairs[2][1], status=Status.TOO_LATE, robot=np.zeros((0, 0)))
    pairs[2] = pairs[2][0], late
    result = replay(record(tmp_path, pairs))
    assert counts(result) == (3, 0, 0, 0)
    assert result.without_inference == 1


def test_a_failure_that_is_none_any_more(tmp_path):
    pairs = answered(episodes(1))
    empty = np.zeros((0, 0), np.float32)
    failed = changed(
        pairs[2][1], status=Status.POLICY_ERROR, status_text='broken', robot=empty, model=empty
    )
    pairs[2] = pairs[2][0], failed
    result = replay(record(tmp_path, pairs))
    assert counts(result) == (3, 0, 1, 0)
    assert (
        'policy_error recorded, ok replayed: broken' in replay_report(result, 'beyond').as_text()
    )


def test_a_failure_of_now_is_missing():
    (_, raw), *_ = answered(episodes(1))
    then = wire_chunk.decode(raw)
    now = replace(then, status=Status.NOT_FINITE, status_text='NaN')
    assert compare_replies(then, now).level is MatchLevel.MISSING


def test_an_incident_is_replayed(tmp_path):
    pairs = answered(episodes(2), 'recurrent', default_task='fold')
    info = {'task': 'fold', 'robot_type': 'arm', 'rtc_execution_horizon': 3}
    found = [incident_file.RecordedExchange(*pair, info) for pair in pairs]
    found.append(incident_file.RecordedExchange(request(99, episode=1), b'', {}))
    file = tmp_path / 'x.safetensors'
    incident_file.write_incident(file, found)
    result = replay(file, 'recurrent')
    assert counts(result) == (8, 0, 0, 0)
    assert result.without_reply == 1


def test_a_request_without_a_session_is_replayed(tmp_path):
    pairs = answered([request(1)])
    info = {'session_id': 'predict_chunk#4'}
    file = tmp_path / 'x.safetensors'
    incident_file.write_incident(file, [incident_file.RecordedExchange(*pairs[0], info)])
    assert counts(replay(file)) == (1, 0, 0, 0)


@pytest.mark.parametrize('damage', ['type', 'cut'])
@pytest.mark.limit_s(20)
def test_a_damaged_request_is_noted_and_the_others_compared(tmp_path, damage):
    pairs = answered(episodes(1))
    raw, reply = pairs[1]
    # a capture has no checksum; the header ends with the type and the flags
    type_at = FLAGS_AT - 1
    names_end = raw.index(b'episode_0') + len(b'episode_0\0')
    assert read_envelope(raw[:names_end])
    damaged = {
        'type': raw[:type_at] + bytes([MsgType.CHUNK]) + raw[type_at + 1 :],
        'cut': raw[:names_end],
    }
    pairs[1] = damaged[damage], reply
    file = tmp_path / 'x.safetensors'
    incident_file.write_incident(
        file, [incident_file.RecordedExchange(*pair, {}) for pair in pairs]
    )
    result = replay(file)
    assert counts(result) == (3, 0, 0, 0)
    (note,) = result.notes
    assert note.startswith('a request or a reply cannot be read: ')


@pytest.mark.parametrize(
    ('name', 'words'),
    [
        ('x.txt', 'neither a bag nor a capture nor a trace'),
        ('missing.mcap', 'does not exist'),
    ],
)
def test_what_cannot_be_replayed(tmp_path, name, words):
    file = tmp_path / name
    if 'missing' not in name:
        file.write_text('{}')
    with pytest.raises(ReplayError, match=words):
        open_source(file)


@pytest.mark.parametrize(
    ('expected', 'fail_on', 'status'),
    [
        ((1, 0, 0, 0), 'different', 0),
        ((1, 1, 0, 0), 'different', 3),
        ((1, 1, 0, 0), 'beyond', 0),
        ((1, 0, 1, 0), 'beyond', 3),
        ((1, 0, 1, 0), 'missing', 0),
        ((1, 0, 0, 1), 'missing', 3),
        ((1, 0, 0, 1), 'different', 3),
        ((0, 0, 1, 1), 'never', 0),
        ((0, 0, 0, 0), 'never', 4),
    ],
)
def test_exit_status(expected, fail_on, status):
    found = PolicySummary('a', 'p', dict(zip(MatchLevel, expected, strict=True)))
    result = ReplayResult('p', False, (), 1e-4, {('a', 'p'): found})
    assert status_of(result, fail_on) == status


def test_answers_of_two_policies_are_one_question_now(tmp_path):
    pairs = answered(episodes(2))
    other = [(asked, changed(raw, policy='other@1', slot='b')) for asked, raw in pairs]
    both = [m for two in zip(as_messages(pairs), as_messages(other), strict=True) for m in two]
    # asked twice, a hidden state would be another one
    result = replay(write(tmp_path / 'bag', both), 'recurrent')
    first, second = result.summaries.values()
    assert (first.slot, second.slot, first.distances.count) == ('prod', 'b', 8)
    assert first.distances.total.tolist() == second.distances.total.tolist()


EVENTS = '/policy_server/open_session/_service_event'
PLUGIN = PLUGINS / 'steered'


def opened(client_id: str, task: str = '', robot_type: str = '', horizon: int = 0) -> BagMessage:
    """Return what a recorder hears of the call of a robot without a body."""
    request = OpenSessionRequest(
        client_id=client_id,
        session_epoch=1,
        task=task,
        robot_type=robot_type,
        rtc_execution_horizon=horizon,
    )
    return BagMessage(EVENTS, OPEN_SESSION, 1, open_session_event(request))


def test_each_request_comes_with_what_its_session_agreed_on(tmp_path):
    pairs = answered([*episodes(1), *episodes(1, client='robot_2')])
    told = [opened('robot_1', 'old'), opened('robot_1', 'fold', 'arm', 9)]
    source = open_source(write(tmp_path / 'bag', [*told, *as_messages(pairs)]))
    fold = {'task': 'fold', 'robot_type': 'arm', 'rtc_execution_horizon': 9}
    assert [recorded.info for recorded in source.read()] == 4 * [fold] + 4 * [{}]


@pytest.mark.parametrize('begins_late', [False, True])
def test_what_a_robot_asked_for_once_is_asked_again(begins_late, tmp_path, monkeypatch):
    """The policy fails where the session's task says so; no request repeats it."""
    monkeypatch.syspath_prepend(PLUGIN)
    steered = str(tmp_path)
    messages = as_messages(answered(episodes(1, joints=6), 'steered', steered, default_task='nan'))
    calls = [opened('robot_1', 'nan'), opened('robot_2', 'raise')]
    told = [*messages, *calls] if begins_late else [*calls, *messages]
    result = replay(write(tmp_path / 'told', told), 'steered', steered)
    assert counts(result) == (4, 0, 0, 0)
    result = replay(write(tmp_path / 'untold', messages), 'steered', steered)
    assert counts(result) == (0, 0, 4, 0)


def test_a_call_that_cannot_be_read_is_told(tmp_path):
    torn = BagMessage(EVENTS, OPEN_SESSION, 1, b'torn')
    result = replay(write(tmp_path / 'bag', [torn, *as_messages(answered(episodes(1)))]))
    assert counts(result) == (4, 0, 0, 0)
    assert result.notes == ['messages that cannot be read: 1']
