# SPDX-License-Identifier: Apache-2.0
"""The metrics of a learner."""

from __future__ import annotations

from msgspec.structs import replace
import pytest
from support.golden import listed

from lerobot_serve.learner.metrics import collect
from lerobot_serve.learner.rounds.learner import NOTHING_SHOWN


@pytest.mark.golden
def test_the_metrics_are_what_was_agreed(golden):
    shown = replace(NOTHING_SHOWN, progress=0.5, loss=0.1)
    golden.holds('metrics/learner.txt', listed(collect(shown, {})))
