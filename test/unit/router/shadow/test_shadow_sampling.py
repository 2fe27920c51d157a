# SPDX-License-Identifier: Apache-2.0
"""Which requests the shadow sees: as many as said, and the same ones each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.router.shadow.sample_joiner import RequestKey
from lerobot_serve.router.shadow.sampling import is_drawn_twice, is_shadowed

REQUESTS = [RequestKey(f'robot_{n % 7}', n % 5, n) for n in range(4000)]
keys = st.builds(
    RequestKey, st.text(max_size=9), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
)


@given(keys)
def test_all_or_none(key):
    for choose in (is_shadowed, is_drawn_twice):
        assert choose(key, 100.0)
        assert not choose(key, 0.0)


@pytest.mark.parametrize('choose', [is_shadowed, is_drawn_twice])
@pytest.mark.parametrize('percent', [0.5, 5.0, 50.0, 99.0])
def test_about_as_many_as_said(choose, percent):
    share = sum(choose(key, percent) for key in REQUESTS) / len(REQUESTS)
    # four standard deviations
    slack = 4 * (percent / 100 * (1 - percent / 100) / len(REQUESTS)) ** 0.5
    assert abs(share - percent / 100) < slack


@given(keys, st.floats(0, 100), st.floats(0, 100))
def test_more_percent_only_add_requests(key, low, high):
    low, high = sorted((low, high))
    assert is_shadowed(key, low) <= is_shadowed(key, high)


def test_the_same_requests_are_chosen_on_every_machine():
    chosen = [n for n, key in enumerate(REQUESTS[:100]) if is_shadowed(key, 10.0)]
    assert chosen == [5, 6, 21, 34, 52, 78, 79]


def test_the_two_choices_have_nothing_to_do_with_each_other():
    shadowed = [key for key in REQUESTS if is_shadowed(key, 50.0)]
    share = sum(is_drawn_twice(key, 50.0) for key in shadowed) / len(shadowed)
    assert 0.44 < share < 0.56


def test_each_number_of_a_request_counts():
    one = RequestKey('robot_1', 1, 1)
    for others in (
        [one._replace(seq=n) for n in range(64)],
        [one._replace(session_epoch=n) for n in range(64)],
        [one._replace(client_id=str(n)) for n in range(64)],
    ):
        assert len({is_shadowed(other, 50.0) for other in others}) == 2
