# SPDX-License-Identifier: Apache-2.0
"""A goal of PredictChunk that cannot be finished is still not waited for."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from lerobot_serve.ros.contract import predict_chunk_action
from lerobot_serve.ros.contract.predict_chunk_action import PredictChunkAction


def test_a_goal_whose_end_fails_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(predict_chunk_action, 'SteadyClockActionServer', Mock())
    monkeypatch.setattr(predict_chunk_action, 'observation_bytes', lambda *_: b'')
    monkeypatch.setattr(
        predict_chunk_action, 'finish_goal', Mock(side_effect=RuntimeError('gone'))
    )

    def submit(raw, on_reply):
        on_reply(object())
        return 'goal#1'

    action = PredictChunkAction(Mock(), submit, Mock(), lambda: 0)
    goal = SimpleNamespace(
        goal_id=SimpleNamespace(uuid=bytes(16)), publish_feedback=Mock(), request=None
    )
    with pytest.raises(RuntimeError, match='gone'):
        action._execute(goal).send(None)
    assert action.wait_until_replied(0.0)
