# SPDX-License-Identifier: Apache-2.0
"""The ledger: one request in flight, and only its own answer counts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.edge.queue.action_queue import QueueMark
from lerobot_serve.edge.session.tracker import PendingRequest, ReplyDropped, RequestTracker
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.schema import MsgType

EPOCH = 7
MARK = QueueMark(epoch=2, rows_taken=3)


def begin(ledger: RequestTracker) -> PendingRequest:
    return ledger.begin(sent_ns=10, captured_ns=5, mark=MARK, episode_id='fold-1')


def header(ledger: RequestTracker, seq: int) -> Header:
    return Header(seq, 0, ledger.session_epoch, ledger.episode, 1, MsgType.CHUNK)


def content(ledger: RequestTracker) -> dict:
    return dict(vars(ledger))


def dropped(ledger: RequestTracker, answer: Header) -> str:
    """Return why the answer is dropped, which must have changed nothing."""
    before = content(ledger)
    with pytest.raises(ReplyDropped) as refused:
        ledger.accept(answer)
    assert content(ledger) == before
    return refused.value.reason


def test_the_answer_gives_back_what_was_noted():
    ledger = RequestTracker(EPOCH)
    pending = begin(ledger)
    assert pending == PendingRequest(1, 10, 5, MARK, EPOCH, 0, 'fold-1')
    assert ledger.accept(header(ledger, 1)) == pending
    assert ledger.pending is None


def test_requests_are_numbered_one_by_one():
    ledger = RequestTracker(EPOCH)
    for seq in (1, 2, 3):
        assert begin(ledger).seq == seq
        ledger.accept(header(ledger, seq))


def test_a_second_request_in_flight_is_a_mistake():
    ledger = RequestTracker(EPOCH)
    begin(ledger)
    before = content(ledger)
    with pytest.raises(RuntimeError, match='request 1 is still in flight'):
        begin(ledger)
    assert content(ledger) == before


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'session_epoch': EPOCH - 1}, 'stale_epoch'),
        ({'session_epoch': EPOCH + 1}, 'stale_epoch'),
        ({'episode': 1}, 'stale_episode'),
        ({'seq': 0}, 'late_chunk'),
        ({'seq': 2}, 'late_chunk'),
    ],
)
def test_an_answer_to_something_else_is_dropped_with_its_reason(changes, reason):
    ledger = RequestTracker(EPOCH)
    begin(ledger)
    assert dropped(ledger, replace(header(ledger, 1), **changes)) == reason
    assert ledger.accept(header(ledger, 1)).seq == 1


def test_the_same_answer_twice_counts_once():
    ledger = RequestTracker(EPOCH)
    begin(ledger)
    ledger.accept(header(ledger, 1))
    assert dropped(ledger, header(ledger, 1)) == 'late_chunk'


def test_an_answer_after_giving_up_is_late():
    ledger = RequestTracker(EPOCH)
    begin(ledger)
    ledger.give_up()
    assert dropped(ledger, header(ledger, 1)) == 'late_chunk'
    begin(ledger)
    assert dropped(ledger, header(ledger, 1)) == 'late_chunk'
    assert ledger.accept(header(ledger, 2)).seq == 2


def test_a_new_episode_takes_no_answer_of_the_old_one():
    ledger = RequestTracker(EPOCH)
    begin(ledger)
    old = header(ledger, 1)
    assert ledger.new_episode() == 1
    assert dropped(ledger, old) == 'stale_episode'
    assert begin(ledger).seq == 2
    assert dropped(ledger, old) == 'stale_episode'
    assert ledger.accept(header(ledger, 2)).seq == 2


answers = st.builds(
    Header,
    seq=st.integers(0, 4),
    client_mono_ns=st.just(0),
    session_epoch=st.integers(EPOCH - 1, EPOCH),
    episode=st.integers(0, 2),
    schema_version=st.just(1),
    msg_type=st.just(MsgType.CHUNK),
)
events = st.lists(st.sampled_from(['begin', 'give up', 'episode']) | answers, max_size=40)


@given(events)
def test_only_the_latest_outstanding_request_is_ever_answered(script):
    ledger, outstanding, accepted = RequestTracker(EPOCH), None, []
    for event in script:
        if isinstance(event, Header):
            counts = outstanding == (event.session_epoch, event.episode, event.seq)
            if counts:
                accepted.append(ledger.accept(event).seq)
                outstanding = None
            else:
                dropped(ledger, event)
        elif event == 'begin' and outstanding is None:
            outstanding = (EPOCH, ledger.episode, begin(ledger).seq)
        elif event == 'give up':
            ledger.give_up()
            outstanding = None
        elif event == 'episode':
            ledger.new_episode()
            outstanding = None
    assert accepted == sorted(set(accepted))
