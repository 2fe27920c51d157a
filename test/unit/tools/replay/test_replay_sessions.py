# SPDX-License-Identifier: Apache-2.0
"""What robots agreed on when they opened their sessions is taken from the bag."""

from __future__ import annotations

import struct

import pytest
from support.paths import PLUGINS
from support.tools.bag_rig import write
from support.tools.replay_rig import answered, as_messages, counts, episodes, replay

from lerobot_serve.contract.cdr import CdrWriter
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.service_events import OPEN_SESSION, REQUEST_RECEIVED
from lerobot_serve.tools.replay.sources import open_source

EVENTS = '/policy_server/open_session/_service_event'
PLUGIN = PLUGINS / 'steered'
UINT32, UINT64 = struct.Struct('<I'), struct.Struct('<Q')


def opened(client_id: str, task: str = '', robot_type: str = '', horizon: int = 0) -> BagMessage:
    """Return what a recorder hears of the call of a robot without a body."""
    writer = CdrWriter()
    writer.pack(struct.Struct('<B'), REQUEST_RECEIVED, align=1)
    writer.pack(struct.Struct('<iI16s'), 1, 2, bytes(16), align=4)
    writer.pack(UINT64, 3, align=8)
    writer.count(1, 1, 'request')
    writer.pack(struct.Struct('<H'), 1, align=2)
    writer.string(client_id, 128)
    writer.pack(UINT64, 7, align=8)
    writer.pack(UINT32, 1, align=4)
    for text in ('/replies', robot_type, ''):
        writer.string(text, 128)
    # fps, and no names and cameras
    for _ in range(4):
        writer.pack(UINT32, 0, align=4)
    writer.string(task, 128)
    writer.pack(struct.Struct('<B'), 1, align=1)
    writer.pack(UINT32, horizon, align=4)
    # codec, reply_deadline_s, and no tags and extensions
    writer.pack(struct.Struct('<B'), 0, align=1)
    for _ in range(3):
        writer.pack(UINT32, 0, align=4)
    return BagMessage(EVENTS, OPEN_SESSION, 1, writer.finish())


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
