# SPDX-License-Identifier: Apache-2.0
"""A policy kind of another package, found and served without a change of ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyRequest

pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

from support.paths import PLUGINS
from support.policies import tiny_policies

PLUGIN = PLUGINS / 'relative'
JOINTS = tuple(f'joint_{number}' for number in range(6))


@pytest.fixture
def plugin(monkeypatch):
    """What installing the package is: its folder is on the path."""
    assert 'relative' not in registry.installed_kinds()
    monkeypatch.syspath_prepend(str(PLUGIN))


def load(kind: str, folder: Path):
    loading = LoadOptions(
        path=str(folder), state_names=JOINTS, action_names=JOINTS, trained_fps=30.0, cpu_threads=1
    )
    return registry.load(kind, loading)


def request(policy, session_id: str, position: float) -> PolicyRequest:
    images = {
        camera.name: (np.full((camera.height, camera.width, 3), 90, np.uint8),)
        for camera in policy.describe().cameras
    }
    state = np.full((1, len(JOINTS)), position, np.float32)
    return PolicyRequest(session_id, state, images)


def test_a_kind_comes_with_an_installed_package(plugin, tmp_path):
    assert 'relative' in registry.installed_kinds()
    plain = load('lerobot', tiny_policies.build('act', tmp_path / 'plain'))
    relative = load(
        'relative', tiny_policies.relative(tiny_policies.build('act', tmp_path / 'relative'))
    )
    requests = [request(plain, 'a', 0.25), request(plain, 'b', -0.5)]
    for one, other, sent in zip(
        plain.predict(requests), relative.predict(requests), requests, strict=True
    ):
        # each session's actions with its own state, though both were noted before either was added
        np.testing.assert_array_equal(other.robot, one.robot + sent.state)
        np.testing.assert_array_equal(other.model, one.model)
