# SPDX-License-Identifier: Apache-2.0
"""A learner that trains, as operators see it. Plain data."""

from __future__ import annotations

from lerobot_serve.contract.records import DropCount
from support.tools.operator_states import learner_of

TRAINS = learner_of(
    '/learner',
    'TRAINING',
    text='round 3: trains',
    round=3,
    parent='act@1',
    latest='act@2',
    episodes=120,
    episodes_new=17,
    episodes_wanted=50,
    progress=0.42,
    loss=0.03124,
    remaining_s=750.0,
    dropped=(DropCount('missing', 1), DropCount('other_host', 12)),
)
