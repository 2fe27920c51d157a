# SPDX-License-Identifier: Apache-2.0
"""The list of what survives a crash has all that a robot and a router keep, and nothing else."""

from __future__ import annotations

from pathlib import Path
import re

import pytest

from lerobot_serve.edge.decisions import Decision
from lerobot_serve.learner.memory.memory import PAUSED
from lerobot_serve.router.storage import postgres, records, sqlite_rows
from lerobot_serve.tools.reference.durable_state import DURABLE_STATES, EDGE, LEARNER, ROUTER

KINDS = {records.PARAMETER, records.DRAIN, records.VERDICT, records.CANARY}
# the kinds are rows of `decisions`; the others protect, or say who uses the state
OTHERS = {'decisions', 'seal', 'members', 'store'}


def listed(node: str) -> set[str]:
    return {each.kind for each in DURABLE_STATES if each.node == node}


@pytest.mark.parametrize('source', [sqlite_rows, postgres])
def test_each_table_of_a_router_is_listed(source):
    text = Path(source.__file__).read_text()
    made = set(re.findall(r'CREATE TABLE (?:IF NOT EXISTS )?(\w+)', text))
    assert listed(ROUTER) == KINDS | (made - OTHERS)


def test_each_decision_of_a_robot_is_listed():
    assert listed(EDGE) == {each.file for each in Decision}
    assert listed(LEARNER) == {PAUSED}
