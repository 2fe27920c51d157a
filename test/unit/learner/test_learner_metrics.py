# SPDX-License-Identifier: Apache-2.0
"""The metrics of a learner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.golden import listed

from lerobot_serve.learner.metrics import collect
from lerobot_serve.learner.rounds.settings import Shown


@pytest.mark.golden
def test_the_metrics_are_what_was_agreed(golden):
    golden.holds('metrics/learner.txt', listed(collect(replace(Shown(), progress=0.5, loss=0.1))))
