# SPDX-License-Identifier: Apache-2.0
"""How much of a chunk is skipped: each rule against a plain model made of lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.edge.queue.action_queue import ActionQueue, ChunkSource
from lerobot_serve.edge.queue.delay_rules import DELAY_RULES, moving_time

SCRIPTS = 2000
STEPS = 30


class Plain:
    """What a queue does, in the plainest words; a row is (chunk, row)."""

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.rows: list[tuple[int, int]] = []
        self.taken_since_request = 0

    def take(self) -> tuple[int, int] | None:
        if not self.rows:
            return None
        self.taken_since_request += 1
        return self.rows.pop(0)

    def request(self) -> None:
        self.taken_since_request = 0

    def replace(self, chunk: list[tuple[int, int]], delay: int) -> None:
        if self.rule == 'lerobot':
            self.rows = chunk[delay:]
            return
        if self.rule == 'moving_time' and delay > self.taken_since_request:
            delay = self.taken_since_request
        self.rows = list(chunk)
        while delay > 0 and self.rows:
            del self.rows[0]
            delay -= 1


@pytest.mark.parametrize('rule', DELAY_RULES)
def test_a_queue_plays_what_its_rule_says(rule):
    random = np.random.default_rng(4)
    rows_played = 0
    for _ in range(SCRIPTS):
        rows_played += play_script(rule, random)
    assert rows_played > SCRIPTS


def play_script(rule: str, random: np.random.Generator) -> int:
    """Play one random script on both; return how many rows were taken."""
    queue, plain = ActionQueue(DELAY_RULES[rule]), Plain(rule)
    mark, rows_played = queue.mark(), 0
    for number in range(STEPS):
        step = random.choice(['take', 'take', 'take', 'request', 'replace', 'append', 'clear'])
        if step == 'take':
            planned, expected = queue.take(), plain.take()
            assert (planned and (planned.source.seq, planned.row)) == expected
            rows_played += expected is not None
        elif step == 'request':
            mark = queue.mark()
            plain.request()
        elif step == 'clear':
            queue.clear()
            mark, plain.rows = queue.mark(), []
            plain.request()
        else:
            count, delay = int(random.integers(0, 9)), int(random.integers(-12, 12))
            chunk = [(number, row) for row in range(count)]
            of = ChunkSource(number, 7, 0, 'episode', 0, 'prod', 'fake@0')
            robot = np.zeros((count, 2), np.float32)
            if step == 'append':
                queue.append(robot, of, mark=mark)
                plain.rows += chunk
            else:
                skipped = queue.replace(robot, of, mark=mark, delay_rows=delay)
                plain.replace(chunk, delay)
                assert skipped == count - len(plain.rows)
        assert queue.rows_left == len(plain.rows)
    return rows_played


rows = st.integers(0, 200)


@pytest.mark.parametrize('rule', DELAY_RULES.values(), ids=DELAY_RULES)
@given(latency=st.integers(-(10**9), 10**9), taken_rows=rows, chunk=rows)
def test_no_rule_skips_what_a_chunk_does_not_have(rule, latency, taken_rows, chunk):
    assert 0 <= rule(latency, taken_rows, chunk) <= chunk


@given(latency=st.integers(-(10**9), 10**9), taken_rows=rows, chunk=rows)
def test_no_row_is_skipped_that_the_robot_was_not_moving_for(latency, taken_rows, chunk):
    assert moving_time(latency, taken_rows, chunk) <= min(taken_rows, max(0, latency))


@pytest.mark.parametrize(
    ('rule', 'delay', 'skipped'),
    [
        ('moving_time', 21, 0),
        ('elapsed_time', 21, 21),
        ('lerobot', 21, 21),
        ('moving_time', 99, 0),
        ('elapsed_time', 99, 30),
        ('lerobot', 99, 30),
        ('moving_time', -4, 0),
        ('elapsed_time', -4, 0),
        ('lerobot', -4, 26),
        ('lerobot', -99, 0),
    ],
)
def test_the_first_chunk_of_thirty(rule, delay, skipped):
    queue = ActionQueue(DELAY_RULES[rule])
    of = ChunkSource(1, 7, 0, 'episode', 0, 'prod', 'fake@0')
    robot = np.zeros((30, 2), np.float32)
    assert queue.replace(robot, of, mark=queue.mark(), delay_rows=delay) == skipped
    assert queue.rows_left == 30 - skipped


def test_the_safe_rule_is_the_one_that_is_not_chosen():
    assert ActionQueue().rule is moving_time
