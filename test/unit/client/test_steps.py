# SPDX-License-Identifier: Apache-2.0
"""Plans that get results and errors, and those that are interrupted."""

from __future__ import annotations

import threading

import pytest

from lerobot_serve.client.steps import Blocking, Pause, run_plan


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
