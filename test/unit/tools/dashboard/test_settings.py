# SPDX-License-Identifier: Apache-2.0
"""The folders of a dashboard, which its fleet may not have written yet."""

from __future__ import annotations

import pytest

from lerobot_serve.errors import UserError
from lerobot_serve.tools.dashboard.settings import DashboardSettings


def test_missing_folders_are_made(tmp_path):
    traces, captures = tmp_path / 'fleet' / 'traces', tmp_path / 'captures'
    DashboardSettings(trace_folder=traces, capture_folder=captures)
    assert traces.is_dir() and captures.is_dir()
    # and may be there
    DashboardSettings(trace_folder=traces)


def test_what_is_no_folder_is_refused_by_its_option(tmp_path):
    file = tmp_path / 'traces'
    file.touch()
    with pytest.raises(UserError, match=f'--trace-folder {file}: is not a folder'):
        DashboardSettings(trace_folder=file)
    with pytest.raises(UserError, match=f'--capture-folder {file}/below: Not a directory'):
        DashboardSettings(capture_folder=file / 'below')
