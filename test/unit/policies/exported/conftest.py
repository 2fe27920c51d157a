# SPDX-License-Identifier: Apache-2.0
"""Programs of torch are not tried in a child process, which takes 5 s of CPU each."""

from __future__ import annotations

from pathlib import Path
import shutil

import pytest


@pytest.fixture(autouse=True)
def no_trial(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the trial of torch programs; `test_program_trial.py` has it."""
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    from lerobot_serve.policies.exported import programs

    if request.node.path.name != 'test_program_trial.py':
        monkeypatch.setattr(programs, 'try_in_child', lambda *_, **__: '')


@pytest.fixture(scope='module')
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an exported policy, which a test must not change."""
    from support.policies import exported_rig

    folder = tmp_path_factory.mktemp('original')
    exported_rig.write_policy(folder, exported_rig.exported())
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """The folder of an exported policy that a test may damage."""
    return Path(shutil.copytree(original, tmp_path / 'policy'))
