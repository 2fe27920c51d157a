# SPDX-License-Identifier: Apache-2.0
"""Programs of torch are not tried in a child process, which takes 5 s of CPU each."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_trial(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the trial of torch programs; `test_program_trial.py` has it."""
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    from lerobot_serve.policies.exported import programs

    if request.node.path.name != 'test_program_trial.py':
        monkeypatch.setattr(programs, 'try_in_child', lambda *_, **__: '')
