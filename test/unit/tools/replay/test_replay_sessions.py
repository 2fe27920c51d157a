# SPDX-License-Identifier: Apache-2.0
"""What robots agreed on when they opened their sessions is taken from the bag."""

from __future__ import annotations

import pytest
from support.paths import PLUGINS
from support.tools.bag_rig import open_session_event, write
from support.tools.replay_rig import answered, as_messages, counts, episodes, replay

from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.service_events import OPEN_SESSION
from lerobot_serve.tools.replay.sources import open_source

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
