# SPDX-License-Identifier: Apache-2.0
"""Robots' files to change in one place; for the tests of what a file may say."""

from __future__ import annotations

import copy

import yaml

from support.paths import REPOSITORY

ROBOTS = REPOSITORY / 'config' / 'robots'
SIM_ARM = ROBOTS / 'sim_arm.yaml'
ARM = yaml.safe_load(SIM_ARM.read_text())
BASE = yaml.safe_load((ROBOTS / 'diff_drive.yaml').read_text())
PAN_PATH = 'actions/shoulder_pan.pos'
FRONT_PATH = 'cameras/observation.images.front'
REMOVED = ...


def changed(path: str, value: object, content: dict = ARM) -> dict:
    """Return a robot's content, the simulated arm's by default, with one place changed."""
    content = copy.deepcopy(content)
    *tables, key = path.split('/')
    table = content
    for name in tables:
        table = table[int(name)] if isinstance(table, list) else table.setdefault(name, {})
    if value is REMOVED:
        del table[key]
    else:
        table[int(key) if isinstance(table, list) else key] = value
    return content
