# SPDX-License-Identifier: Apache-2.0
"""Operators of these tests remember no robots of other tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_home(monkeypatch, tmp_path):
    monkeypatch.setenv('ROS_HOME', str(tmp_path / 'operator'))
