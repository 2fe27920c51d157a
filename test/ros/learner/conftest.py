# SPDX-License-Identifier: Apache-2.0
"""A learner, not started yet."""

from __future__ import annotations

import pytest
from support.learner.learner_node_rig import LearnerNodeRig


@pytest.fixture
def learner_rig(node, processes, tmp_path):
    """The rig; its processes end with the test."""
    rig = LearnerNodeRig(node, processes, tmp_path)
    yield rig
    # a trainer that waits could not end
    rig.gate.touch()
