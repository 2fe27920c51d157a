# SPDX-License-Identifier: Apache-2.0
"""A trace with all its images is asked again like a bag, or it is said why it is not."""

from __future__ import annotations

import argparse
from base64 import b64encode
import json
from pathlib import Path

from hypothesis import given
import numpy as np
import pytest
from support.contract.wire_examples import observations, patient
from support.paths import REPOSITORY
from support.replacing import replace
from support.server.traced_server_rig import (
    edge_trace,
    lines,
    traced,
    TracedServer,
    WITH_CAMERA,
    with_images,
)
from support.tools.replay_rig import (
    answered,
    counts,
    episodes,
    OTHER_SHAPE,
    record,
    replay,
    request,
    SHAPE,
)

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import Codec
from lerobot_serve.sim import cameras
from lerobot_serve.sim.arm import HOME_RAD
from lerobot_serve.tools.cli.verbs import replay as command
from lerobot_serve.tools.replay.sources import open_source, ReplayError
from lerobot_serve.tools.traces.fields import read_record
from lerobot_serve.trace.format import records, replay_field
from lerobot_serve.trace.format.encoding import decode, encode
from lerobot_serve.trace.format.records import RequestRecord
from lerobot_serve.trace.format.redaction import Redaction
from lerobot_serve.trace.format.run_files import TraceError

PARTS_BYTES = 8192
REACH = str(REPOSITORY / 'config' / 'policies' / 'reach')


def of_arm(seq: int) -> bytes:
    """Return a request of a simulated arm, of which each sees its target elsewhere."""
    pictures = tuple(
        image_codec.encode(
            f'observation.images.{name}',
            cameras.render(name, 64, 64, HOME_RAD, (0.25, 0.1 * seq)),
            Codec.JPEG,
        )
        for name in cameras.NAMES
    )
    state = np.array([HOME_RAD], np.float32)
    asked = replace(wire_observation.decode(request(seq)), state=state, images=pictures)
    return wire_observation.encode(asked)


@pytest.mark.parametrize('kind', ['null', 'recurrent'])
def test_the_same_policy_gives_the_same_bits(tmp_path, kind):
    path, _ = traced(tmp_path, episodes(3) + episodes(2, client='robot_2'), kind)
    result = replay(path, kind)
    assert counts(result) == (20, 0, 0, 0)
    assert not result.is_other_policy
    assert (result.without_reply, result.without_inference, result.notes) == (0, 0, [])


@pytest.mark.parametrize('asked', [request, with_images])
def test_what_was_sent_and_answered_comes_back_byte_for_byte(tmp_path, asked):
    shape = WITH_CAMERA if asked is with_images else SHAPE
    path, pairs = traced(tmp_path, [asked(1), asked(2)], path=shape)
    found = list(open_source(path).read())
    assert [(each.request, each.reply) for each in found] == pairs
    assert all(each.info == {'session_id': 'robot_1#00000001'} for each in found)


@patient
@given(observations)
def test_any_request_comes_back_byte_for_byte(observation: Observation):
    pictures = Redaction('full').image_records(observation.images)
    field = replay_field.encode_field(observation, b'answer', {'task': 'fold'})
    line = encode({'kind': 'request', 'replay': field, 'images': pictures})
    kept = replay_field.decode_field(read_record(line))
    assert kept == (wire_observation.encode(observation), b'answer', {'task': 'fold'})


def test_what_the_session_adds_is_kept(tmp_path):
    server = TracedServer(tmp_path, default_task='rest')
    server.ask([request(1)], task='fold', robot_type='arm', rtc_execution_horizon=3)
    (found,) = open_source(server.end()).read()
    assert found.info == {
        'session_id': 'robot_1#00000001',
        'task': 'fold',
        'robot_type': 'arm',
        'rtc_execution_horizon': 3,
    }


def test_a_request_without_a_session_is_replayed(tmp_path):
    server = TracedServer(tmp_path)
    server.ask_one('predict_chunk#4', request(1), lambda _: None)
    assert counts(replay(server.end())) == (1, 0, 0, 0)


def run(path: Path, *words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args([str(path), *words]))


def test_exit_status_of_the_command(tmp_path, capsys):
    path, _ = traced(tmp_path, episodes(2))
    same = ('--kind', 'null', '--policy', SHAPE)
    assert run(tmp_path, *same, '--fail-on', 'different') == 0
    assert run(path, '--kind', 'null', '--policy', OTHER_SHAPE) == 3
    assert '(5, 3) actions recorded, (7, 3) replayed' in capsys.readouterr().out


def test_a_server_that_nobody_asked_leaves_nothing_to_compare(tmp_path):
    path, _ = traced(tmp_path, [])
    assert run(path, '--kind', 'null', '--policy', SHAPE) == 4


def test_an_answer_that_was_another_one_is_found(tmp_path):
    path, pairs = traced(tmp_path, episodes(1))
    chunk = wire_chunk.decode(pairs[0][1])
    other = wire_chunk.encode(replace(chunk, robot=chunk.robot + np.float32(1)))
    made = lines(path)
    at = next(i for i, line in enumerate(made) if b'"kind":"request"' in line)
    found = decode(made[at])
    found['replay']['answer'] = b64encode(other).decode()
    made[at] = encode(found)
    path.write_bytes(b''.join(made))
    assert counts(replay(path)) == (3, 0, 1, 0)


def test_a_run_of_several_files_is_one(tmp_path):
    server = TracedServer(tmp_path, 'recurrent')
    server.recorder.writer._output._limit_bytes = PARTS_BYTES
    server.ask(episodes(5))
    path = server.end()
    parts = sorted(tmp_path.glob('*.jsonl'))
    assert len(parts) > 2
    for named in (tmp_path, path, parts[0]):
        assert counts(replay(named, 'recurrent')) == (20, 0, 0, 0)
    server_policy = open_source(path).policies()
    assert list(server_policy.values()) == [20]


def test_the_first_file_may_be_gone(tmp_path):
    server = TracedServer(tmp_path, 'recurrent')
    server.recorder.writer._output._limit_bytes = PARTS_BYTES
    server.ask(episodes(5))
    path = server.end()
    min(tmp_path.glob('*.jsonl'), key=lambda file: len(file.name)).unlink()
    result = replay(path, 'recurrent')
    identical, within, beyond, missing = counts(result)
    assert 0 < identical < 20
    assert (within, beyond) == (0, 0)
    # of the episode that is not there from its start
    assert missing < 4


def test_a_folder_with_all_that_a_fleet_traced(tmp_path):
    traced(tmp_path / 'one', episodes(2))
    traced(tmp_path / 'other', episodes(1, client='robot_2'))
    traced(tmp_path / 'bare', [request(1)], trace_images='none')
    edge_trace(tmp_path / 'edge')
    result = replay(tmp_path)
    assert counts(result) == (12, 0, 0, 0)
    # what the bare one was asked cannot be asked again
    assert result.without_reply == 0
    assert [note.partition(' has ')[2] for note in result.notes] == [
        'trace_images: none, trace_instructions: full: not compared'
    ]


def test_a_bag_beside_a_trace_stays_a_bag(tmp_path):
    bag = record(tmp_path, answered(episodes(1)))
    traced(bag, episodes(2))
    assert counts(replay(bag)) == (4, 0, 0, 0)


def test_what_became_of_requests_is_counted_as_for_bags(tmp_path):
    server = TracedServer(tmp_path)
    first, second, third = request(1), request(2), request(3)
    server.open(first, reply_deadline_s=1e-9)
    # superseded, then too late
    for raw in (first, second):
        server.core.enqueue(raw, 0)
    server.answer()
    server.ask([request(4, client='robot_2')[:-8], request(5, client='robot_3')])
    server.open(third)
    result = replay(server.end())
    assert counts(result) == (1, 0, 0, 0)
    assert (result.without_reply, result.without_inference) == (1, 1)
    assert result.notes == ['requests that the server could not read, not in the trace: 1']


def test_an_answer_that_reached_nobody_is_compared(tmp_path):
    server = TracedServer(tmp_path, 'recurrent')
    for raw in episodes(1):
        server.open(raw)
        server.core.enqueue(raw, 0)
        server.answer('session_closed')
    assert counts(replay(server.end(), 'recurrent')) == (4, 0, 0, 0)


def test_what_the_trace_lost_is_said(tmp_path):
    server = TracedServer(tmp_path)
    server.ask(episodes(1))
    server.observer._recorder.writer.write(
        records.DropRecord(9, reason='trace_overflow', count=3, item='request')
    )
    result = replay(server.end())
    assert result.notes == ['requests that the trace lost: hidden states may differ: 3']


def test_a_request_whose_images_were_left_out_is_one_that_the_trace_lost(tmp_path):
    path, _ = traced(tmp_path, [request(1), request(2)])
    made = lines(path)
    place = next(i for i, line in enumerate(made) if b'"kind":"request"' in line)
    record = decode(made[place])
    del record['replay']
    made[place] = encode(record | {'left_out_bytes': 1 << 24})
    path.write_bytes(b''.join(made))
    result = replay(path)
    assert counts(result) == (1, 0, 0, 0)
    assert result.notes == ['requests that the trace lost: hidden states may differ: 1']


def test_a_record_waits_with_all_that_it_holds_on_to(tmp_path):
    server = TracedServer(tmp_path)
    found = []
    server.recorder.writer.write = found.append
    server.ask([request(1)])
    later = next(each.later for each in found if each.kind == 'request')
    assert later.bytes == sum(map(len, server.pairs[0]))
    json.dumps(later.fields(), default=str)
    server.worker.close()


def test_a_policy_that_sees_is_shown_the_same_pictures(tmp_path):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    path, _ = traced(tmp_path, [of_arm(1), of_arm(2)], 'builtin', REACH)
    assert counts(replay(path, 'builtin', REACH)) == (2, 0, 0, 0)
    # of the first request the pictures of the second
    made = lines(path)
    places = [i for i, line in enumerate(made) if b'"kind":"request"' in line]
    first, second = (decode(made[i]) for i in places)
    made[places[0]] = encode(first | {'images': second['images']})
    path.write_bytes(b''.join(made))
    assert counts(replay(path, 'builtin', REACH)) == (1, 0, 1, 0)


def change(path: Path, **changes: object) -> None:
    """Change fields of every request record; None takes one away."""
    made = []
    for line in lines(path):
        found = decode(line)
        if found['kind'] == 'request':
            found |= changes
        made.append(encode({name: v for name, v in found.items() if v is not None}))
    path.write_bytes(b''.join(made))


@pytest.mark.parametrize('images', ['hash', 'none', 'full'])
@pytest.mark.parametrize('instructions', ['hash', 'none', 'full'])
def test_only_a_trace_that_keeps_all_can_be_replayed(tmp_path, images, instructions):
    path, _ = traced(tmp_path, [request(1)], trace_images=images, trace_instructions=instructions)
    held = b'"replay"' in path.read_bytes()
    assert held == (images == instructions == 'full')
    if held:
        assert counts(replay(path)) == (1, 0, 0, 0)
        return
    with pytest.raises(ReplayError) as error:
        open_source(path)
    text = str(error.value)
    assert f'trace_images: {images}, trace_instructions: {instructions}' in text
    assert 'needs trace_images: full and trace_instructions: full' in text
    assert 'lerobot-serve record' in text
    assert '\n' not in text


@pytest.mark.parametrize('role', ['edge', 'router'])
def test_only_a_server_can_be_replayed(tmp_path, role):
    with pytest.raises(ReplayError, match=f'a trace of {role} only.*trace_images: full'):
        open_source(edge_trace(tmp_path, role))


def test_an_older_trace_is_refused(tmp_path):
    path, _ = traced(tmp_path, [request(1)])
    change(path, replay=None)
    with pytest.raises(ReplayError, match='an older version'):
        open_source(path)


def test_what_is_no_trace_is_refused(tmp_path):
    file = tmp_path / 'x.jsonl'
    file.write_text('{}\n')
    with pytest.raises(TraceError, match='is not a trace'):
        open_source(file)


def test_a_server_that_was_killed(tmp_path):
    path, _ = traced(tmp_path, episodes(2))
    requests = [line for line in lines(path) if b'"kind":"footer"' not in line]
    path.write_bytes(b''.join(requests)[:-30])
    result = replay(path)
    assert counts(result) == (7, 0, 0, 0)
    assert result.notes == ['damaged lines in the trace: 1']


@pytest.mark.parametrize(
    'field',
    [
        5,
        [],
        {},
        {'answer': 5},
        {'answer': '!'},
        {'answer': 'ä'},
        {'answer': 'AAAA', 'request': 'AAAA'},
        {'answer': 'AAAA', 'request': None},
    ],
)
def test_a_record_of_no_sense_is_counted(tmp_path, field):
    path, _ = traced(tmp_path, [request(1), request(2)])
    made = lines(path)
    at = next(i for i, line in enumerate(made) if b'"kind":"request"' in line)
    made[at] = encode(decode(made[at]) | {'replay': field})
    path.write_bytes(b''.join(made))
    result = replay(path)
    assert counts(result) == (1, 0, 0, 0)
    assert len(result.notes) == 1


@pytest.mark.parametrize('images', [None, [], 5, [{}, {}], [{'sha256': ''}] * 2])
def test_pictures_that_are_not_there_are_counted(tmp_path, images):
    path, _ = traced(tmp_path, [with_images(1)], path=WITH_CAMERA)
    change(path, images=images)
    result = replay(path, shape=WITH_CAMERA)
    assert counts(result) == (0, 0, 0, 0)
    assert len(result.notes) == 1


def test_what_the_session_adds_may_be_nonsense():
    field = {'answer': '', 'task': 5, 'robot_type': None, 'rtc_execution_horizon': -1}
    assert replay_field.decode_field(RequestRecord(replay=field)) == (b'', b'', {})
