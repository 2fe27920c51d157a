# SPDX-License-Identifier: Apache-2.0
"""The shadow feed in whatever order things come."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.router.dispatch_rig import answer_bytes, request_bytes, SECOND
from support.router.shadow_feed_rig import feed_rig, LIVE, SHADOW

from lerobot_serve.router.sessions.client_sessions import ClientSession


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
    """One feed for all that hypothesis throws at it."""
    with feed_rig(Path(tmp_path_factory.mktemp('feed'))) as made:
        made.start()
        yield made


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(['request', 'serve', 'shadow', 'again', 'cut', 'status', 'close']),
            st.integers(1, 4),
            st.integers(0, 200),
            st.sampled_from(['robot', 'other', 'robot~again', 'nobody']),
        ),
        max_size=30,
    )
)
def test_nothing_raises_in_the_thread_in_whatever_order_it_comes(shared, events):
    for what, seq, number, name in events:
        robot = shared.robot(name)
        request = shared.request(robot, seq) if what == 'request' else asked(robot, seq)
        raw = answer_bytes(request, policy=SHADOW)
        if what == 'serve':
            shared.serve(robot, request, seed=number)
        elif what == 'shadow':
            shared.feed.on_shadow_chunk(raw)
        elif what == 'again':
            shared.feed.on_second_draw(
                answer_bytes(request, policy=LIVE, client_id=f'{name}~again')
            )
        elif what == 'cut':
            shared.feed.on_shadow_chunk(raw[:number])
            shared.feed.on_second_draw(raw[:number])
        elif what == 'status':
            shared.feed.on_shadow_chunk(answer_bytes(request, status=1 + number % 6))
        elif what == 'close':
            shared.feed.on_session_closed(robot.request)
    shared.settle()
    shared.now_ns += SECOND
    assert not shared.raised


def asked(robot: ClientSession, seq: int) -> bytes:
    return request_bytes(robot.request.client_id, seq, 'e-1')
