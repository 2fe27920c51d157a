# SPDX-License-Identifier: Apache-2.0
"""The request tracker: one request in flight, and only its own answer counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import MsgType
from lerobot_serve.edge.action_queue import QueueMark
from lerobot_serve.edge.session.tracker import PendingRequest, ReplyDropped, RequestTracker

EPOCH = 7
MARK = QueueMark(epoch=2, rows_taken=3)


def tracker_of(epoch: int) -> RequestTracker:
    return RequestTracker('robot', epoch)


def begin(tracker: RequestTracker) -> PendingRequest:
    return tracker.track(sent_ns=10, marked_ns=8, captured_ns=5, mark=MARK)


def header(tracker: RequestTracker, seq: int) -> Header:
    return Header(seq, 0, tracker.session_epoch, tracker.episode, 1, MsgType.CHUNK)


def content(tracker: RequestTracker) -> dict:
    return dict(vars(tracker))


def dropped(tracker: RequestTracker, answer: Header) -> str:
    """Return why the answer is dropped, which must have changed nothing."""
    before = content(tracker)
    with pytest.raises(ReplyDropped) as refused:
        tracker.match_reply(answer)
    assert content(tracker) == before
    return refused.value.reason


def test_a_second_request_in_flight_is_a_mistake():
    tracker = tracker_of(EPOCH)
    begin(tracker)
    before = content(tracker)
    with pytest.raises(RuntimeError, match='request 1 is still in flight'):
        begin(tracker)
    assert content(tracker) == before


@pytest.mark.parametrize(('epoch', 'following'), [(7, 8), (2**31 - 1, 2**31), (2**32 - 1, 0)])
def test_a_new_session_counts_from_the_start(epoch, following):
    tracker = tracker_of(epoch)
    tracker.begin_episode()
    tracker.match_reply(header(tracker, begin(tracker).header.seq))
    assert tracker.next_session_epoch() == following
    assert (tracker.session_epoch, tracker.episode) == (epoch, 1)
    tracker.begin_session(1)
    assert (tracker.session_epoch, tracker.episode) == (following, 0)
    assert begin(tracker).header.seq == 1


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
    tracker, outstanding, accepted = tracker_of(EPOCH), None, []
    for event in script:
        if isinstance(event, Header):
            counts = outstanding == (event.session_epoch, event.episode, event.seq)
            if counts:
                accepted.append(tracker.match_reply(event).header.seq)
                outstanding = None
            else:
                dropped(tracker, event)
        elif event == 'begin' and outstanding is None:
            outstanding = (EPOCH, tracker.episode, begin(tracker).header.seq)
        elif event == 'give up':
            tracker.release()
            outstanding = None
        elif event == 'episode':
            tracker.release()
            tracker.begin_episode()
            outstanding = None
    assert accepted == sorted(set(accepted))
