# SPDX-License-Identifier: Apache-2.0
"""The ring of requests that a capture keeps in memory."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.server.worker_rig import OBSERVATION, queued

from lerobot_serve.server.observability.request_ring import (
    CapturedRequest,
    OVERHEAD_BYTES,
    RequestRing,
)


def kept(name: str, size: int) -> CapturedRequest:
    return CapturedRequest(name, replace(queued(OBSERVATION), raw=b'x' * size), b'', 0.0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just('add'), st.sampled_from('abc'), st.integers(0, 9000)),
        st.tuples(st.just('take'), st.sampled_from(['a', 'b', 'c', '']), st.just(0)),
        st.tuples(st.just('release'), st.just(''), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_ring_holds_no_more_than_it_may_and_the_newest_of_each(steps):
    ring, taken = RequestRing(10_000, limit=5), []
    line: list[CapturedRequest] = []
    for step, name, size in steps:
        if step == 'add':
            line.append(kept(name, size))
            ring.add(line[-1])
        elif step == 'take':
            got = ring.take(name)
            known = [each for each in line if each.session_id == name or not name]
            fitting = [each for each in known if each.size <= 10_000]
            # the newest ones, in their order
            assert got == fitting[len(fitting) - len(got) :]
            line = [each for each in line if each not in known]
            taken.append(got)
        elif taken:
            ring.release(taken.pop(0))
        assert len(ring) <= 5
        assert 0 <= ring.held_bytes <= 10_000
    for got in taken:
        ring.release(got)
    assert ring.held_bytes == sum(each.size for each in ring.take())


def test_a_request_counts_with_what_python_needs_for_it():
    assert kept('a', 0).size == OVERHEAD_BYTES
    ring = RequestRing(3 * OVERHEAD_BYTES)
    for _ in range(10):
        ring.add(kept('a', 0))
    assert len(ring) == 3
