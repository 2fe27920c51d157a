# SPDX-License-Identifier: Apache-2.0
"""A thread that loads beside a served policy pauses, and no other thread does."""

import threading
from types import SimpleNamespace

import pytest

from lerobot_serve.policies.runtime import loading_beside
from lerobot_serve.policies.runtime.loading_beside import (
    beside_served_policy,
    give_way,
    PAUSE_S,
    WORK_S,
)


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock of the module by one that a test sets."""
    clock = SimpleNamespace(now_s=100.0, pauses=[])

    def sleep(seconds: float) -> None:
        clock.pauses.append(seconds)
        clock.now_s += seconds

    fake = SimpleNamespace(monotonic=lambda: clock.now_s, sleep=sleep)
    monkeypatch.setattr(loading_beside, 'time', fake)
    return clock


def test_a_thread_that_loads_pauses_once_for_each_stretch_of_work(clock):
    with beside_served_policy():
        give_way()
        assert clock.pauses == [PAUSE_S]
        give_way()
        clock.now_s += 0.9 * WORK_S
        give_way()
        assert clock.pauses == [PAUSE_S]
        clock.now_s += 0.2 * WORK_S
        give_way()
        assert clock.pauses == [PAUSE_S] * 2


def test_where_nothing_is_served_no_thread_pauses(clock):
    give_way()
    assert clock.pauses == []


def test_a_thread_that_serves_does_not_pause(clock):
    with beside_served_policy():
        serving = threading.Thread(target=give_way)
        serving.start()
        serving.join()
    assert clock.pauses == []
