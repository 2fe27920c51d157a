# SPDX-License-Identifier: Apache-2.0
"""Traces that cannot be asked again, or not all of them: said, or counted, never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.server.traced_server_rig import edge_trace, lines, traced, WITH_CAMERA, with_images
from support.tools.replay_rig import counts, episodes, replay, request

from lerobot_serve.tools.replay.sources import open_source, ReplayError
from lerobot_serve.trace.format import replay_field
from lerobot_serve.trace.format.encoding import decode, encode
from lerobot_serve.trace.format.records import RequestRecord
from lerobot_serve.trace.format.schema import TraceError


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
