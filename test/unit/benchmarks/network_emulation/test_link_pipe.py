# SPDX-License-Identifier: Apache-2.0
"""One direction of a slow link: when a packet arrives, and what is dropped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from benchmarks.network_emulation.pipe import Conditions, NS_PER_MS, Pipe, transmission_time_ns

MTU_BYTES = 1500
conditions = st.builds(
    Conditions,
    rate_mbit_s=st.floats(0.1, 1000),
    delay_ms=st.floats(0, 100),
    loss_percent=st.sampled_from([0.0, 1.0, 30.0, 100.0]),
    queue_ms=st.floats(0, 200),
)
# the time since the one before [us], and the size
packets = st.lists(st.tuples(st.integers(0, 5000), st.integers(20, MTU_BYTES)), max_size=120)
Arrivals = list[tuple[int, int]]


def content(number: int, size: int) -> bytes:
    return number.to_bytes(4, 'big') + bytes(size - 4)


def send_all(pipe: Pipe, sent: list[tuple[int, int]]) -> tuple[dict[int, int], Arrivals]:
    """Return when each packet was offered, and the number and time of each that arrived [ns]."""
    now_ns, offered_ns, arrived = 0, {}, []
    for number, (pause_us, size) in enumerate(sent):
        now_ns += pause_us * 1000
        arrived += take_until(pipe, now_ns)
        offered_ns[number] = now_ns
        pipe.offer(content(number, size), now_ns)
    while pipe.next_ns is not None:
        arrived += take_until(pipe, pipe.next_ns)
    return offered_ns, arrived


def take_until(pipe: Pipe, now_ns: int) -> Arrivals:
    """Take each packet out at the very time that it is due."""
    taken = []
    while pipe.next_ns is not None and pipe.next_ns <= now_ns:
        due_ns = pipe.next_ns
        taken += [(int.from_bytes(packet[:4], 'big'), due_ns) for packet in pipe.arrived(due_ns)]
    return taken


@given(conditions, packets, st.integers(0, 5))
def test_everything_is_counted(link, sent, seed):
    pipe = Pipe(link, seed)
    offered_ns, arrived = send_all(pipe, sent)
    counts = pipe.counts
    assert counts['offered'] == len(sent) == len(offered_ns)
    assert counts['offered_bytes'] == sum(size for _, size in sent)
    assert counts['delivered'] == len(arrived)
    assert counts['offered'] == counts['queue_full'] + counts['lost'] + counts['delivered']


@given(conditions, packets, st.integers(0, 5))
def test_a_packet_under_way_is_counted_too(link, sent, seed):
    pipe = Pipe(link, seed)
    for number, (_, size) in enumerate(sent):
        pipe.offer(content(number, size), 0)
    counts = pipe.counts
    assert counts['offered'] == counts['queue_full'] + counts['lost'] + pipe.under_way


@given(conditions, packets, st.integers(0, 5))
def test_order_is_kept(link, sent, seed):
    _, arrived = send_all(Pipe(link, seed), sent)
    assert arrived == sorted(arrived)
    assert [due_ns for _, due_ns in arrived] == sorted(due_ns for _, due_ns in arrived)


@given(conditions, packets, st.integers(0, 5))
def test_delay_is_at_least_what_was_asked_and_what_the_packet_takes(link, sent, seed):
    offered_ns, arrived = send_all(Pipe(link, seed), sent)
    for number, due_ns in arrived:
        least_ns = round(link.delay_ms * NS_PER_MS) + transmission_time_ns(
            sent[number][1], link.rate_mbit_s
        )
        most_ns = least_ns + link.queue_ms * NS_PER_MS
        assert least_ns <= due_ns - offered_ns[number] <= most_ns + 1


@given(conditions, packets, st.integers(0, 5))
def test_no_window_holds_more_than_the_rate(link, sent, seed):
    _, arrived = send_all(Pipe(link, seed), sent)
    sizes = [sent[number][1] for number, _ in arrived]
    for first in range(len(arrived)):
        bits = 0
        for last in range(first + 1, len(arrived)):
            bits += 8 * sizes[last]
            window_ns = arrived[last][1] - arrived[first][1]
            assert bits <= window_ns * link.rate_mbit_s / 1000 + 1e-6 * bits


def test_loss_is_the_share_that_was_asked_for():
    pipe = Pipe(Conditions(100, 0, 1, queue_ms=0), seed=1)
    count = 100_000
    for number in range(count):
        pipe.offer(bytes(100), number * NS_PER_MS)
    # five standard deviations
    assert abs(pipe.counts['lost'] - 0.01 * count) < 5 * (count * 0.01 * 0.99) ** 0.5


def test_the_same_seed_loses_the_same_packets():
    def lost(seed: int) -> list[tuple[int, int]]:
        return send_all(Pipe(Conditions(10, 5, 20, queue_ms=100), seed), [(100, 500)] * 200)[1]

    assert lost(1) == lost(1) != lost(2)


def test_a_burst_longer_than_the_queue_is_cut():
    # 1500 bytes take 1.2 ms; 100 ms hold 83 of them besides the one that is being sent
    pipe = Pipe(Conditions(10, 20, 0, queue_ms=100), seed=1)
    for number in range(200):
        pipe.offer(content(number, MTU_BYTES), 0)
    assert pipe.under_way == 84
    assert pipe.counts['queue_full'] == 116


def test_what_is_lost_has_had_its_time_on_the_link():
    pipe = Pipe(Conditions(10, 0, 100, queue_ms=100), seed=1)
    for number in range(200):
        pipe.offer(content(number, MTU_BYTES), 0)
    assert pipe.counts == {
        'offered': 200,
        'offered_bytes': 200 * MTU_BYTES,
        'queue_full': 116,
        'lost': 84,
    }


def test_a_link_made_faster_keeps_the_order():
    pipe = Pipe(Conditions(1, 100, 0, queue_ms=100), seed=1)
    pipe.offer(content(0, MTU_BYTES), 0)
    pipe.conditions = Conditions(1000, 1, 0, queue_ms=100)
    pipe.offer(content(1, MTU_BYTES), 0)
    assert [number for number, _ in take_until(pipe, 10**9)] == [0, 1]


@pytest.mark.parametrize(
    ('what', 'values'),
    [
        ('rate_mbit_s must be above 0, got 0', (0, 1, 1, 1)),
        ('loss_percent must be in [0, 100], got 101', (1, 1, 101, 1)),
        ('delay_ms and queue_ms must be 0 or above, got -1 and 1', (1, -1, 1, 1)),
        ('delay_ms and queue_ms must be 0 or above, got 1 and -1', (1, 1, 1, -1)),
    ],
)
def test_a_link_that_cannot_be_is_refused(what, values):
    with pytest.raises(ValueError) as error:
        Conditions(*values)
    assert str(error.value) == what
