# SPDX-License-Identifier: Apache-2.0
"""Turns in any order of calls, replies and ends; and plans that are interrupted."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.client.session.turns import RequestTurns, Turn
from lerobot_serve.client.steps import Blocking, Pause, run_plan
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import MsgType

ACTIONS = st.lists(
    st.tuples(st.sampled_from(['enter', 'send', 'reply', 'leave', 'end']), st.integers(0, 9))
)


@given(ACTIONS)
def test_one_may_send_one_waits_and_each_reply_is_taken_or_counted(actions):
    turns, here, sent, taken = RequestTurns(), [], [], 0
    replies = 0
    for sequence, (action, index) in enumerate(actions):
        turn: Turn | None = here[index % len(here)] if here else None
        if action == 'enter':
            here.append(turns.enter(threading.Event()))
        elif action == 'end':
            turns.end_all('over')
        elif turn is None:
            continue
        elif action == 'leave':
            turns.leave(turn)
            here.remove(turn)
        elif action == 'send' and turn.may_send:
            request = Header(sequence, 0, 1, 0, 1, MsgType.OBSERVATION)
            if turns.expect(turn, request):
                sent.append(request)
        elif action == 'reply' and sent:
            request = sent.pop(index % len(sent))
            before = sum(each.reply is not None for each in here)
            turns.on_reply(request.for_reply(0), b'', 0)
            replies += 1
            taken += sum(each.reply is not None for each in here) - before
        active = [each for each in here if not each.superseded]
        assert sum(each.may_send for each in here) <= 1
        assert sum(not each.may_send for each in active) <= 1
        # nobody waits for a place that is free
        assert not active or any(each.may_send for each in here)
    assert taken + sum(turns.dropped.values()) == replies


def test_an_interrupted_plan_cleans_up_and_ends():
    ends = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    def plan():
        try:
            yield Blocking(interrupted)
        finally:
            ends.append('cleaned up')

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan())
    assert ends == ['cleaned up']


def test_a_plan_gets_results_and_errors():
    def plan():
        assert (yield Pause(threading.Event(), 0.0)) is False
        with pytest.raises(ZeroDivisionError):
            yield Blocking(lambda: 1 / 0)
        return (yield Blocking(lambda: 7))

    assert run_plan(plan()) == 7
