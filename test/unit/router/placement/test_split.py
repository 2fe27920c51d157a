# SPDX-License-Identifier: Apache-2.0
"""The split: the same slot for the same name, everywhere and always, in the share asked for."""

from __future__ import annotations

import hashlib
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.router.placement.split import bucket, BUCKETS, slot

names = st.text(st.characters(exclude_categories=['Cs']))


@pytest.mark.parametrize(('key', 'number'), [('ep_xyz', 77), ('ep_42', 29)])
def test_the_documented_vectors(key, number):
    assert bucket(key) == number


def test_the_bucket_does_not_depend_on_the_process():
    code = "from lerobot_serve.router.placement.split import bucket; print(bucket('ep_xyz'))"
    command = [sys.executable, '-c', code]
    assert subprocess.run(command, capture_output=True, timeout=60).stdout == b'77\n'


@given(names)
def test_the_bucket_is_what_the_module_says(key):
    digest = hashlib.sha256(key.encode('utf-8')).hexdigest()
    assert bucket(key) == int(digest[:16], 16) % 100


@given(st.integers(0, BUCKETS - 1), st.integers(0, 100))
def test_slot_a_is_for_the_buckets_below_the_split(number, split_percent):
    assert slot(number, split_percent) == ('a' if number < split_percent else 'b')


@given(names)
def test_nothing_and_everything_can_be_sent_to_a_slot(key):
    assert slot(bucket(key), 0) == 'b'
    assert slot(bucket(key), 100) == 'a'


@given(names, st.integers(0, 99))
def test_a_larger_split_only_moves_new_episodes_to_a(key, split_percent):
    if slot(bucket(key), split_percent) == 'a':
        assert slot(bucket(key), split_percent + 1) == 'a'


def test_without_a_split_there_is_one_slot():
    assert {slot(number, None) for number in range(BUCKETS)} == {'prod'}


def test_the_share_of_a_million_episodes_is_the_one_asked_for():
    counts = [0] * BUCKETS
    for number in range(1_000_000):
        counts[bucket(f'robot_{number % 7}-{number}')] += 1
    for split_percent in range(101):
        to_a = sum(c for n, c in enumerate(counts) if slot(n, split_percent) == 'a')
        assert abs(to_a / 10_000 - split_percent) < 0.2
