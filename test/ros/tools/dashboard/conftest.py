# SPDX-License-Identifier: Apache-2.0
"""A dashboard beside real nodes, and a browser for its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.dashboard.browser import chromium_path, IGNORED_WITHOUT, started_browser
from support.nodes.dashboard_rig import DashboardRig

# test/unit/tools/dashboard/test_browser.py says so
collect_ignore_glob = [] if chromium_path() else IGNORED_WITHOUT


@pytest.fixture(scope='module')
def browser():
    with started_browser() as started:
        yield started


@pytest.fixture
def start_dashboard(tmp_path) -> Iterator[Callable[..., DashboardRig]]:
    """Starts dashboards; all are ended after the test."""
    with ExitStack() as stack:

        def start(**settings: Any) -> DashboardRig:
            started = DashboardRig(tmp_path, **settings)
            stack.callback(started.close)
            return started

        yield start
