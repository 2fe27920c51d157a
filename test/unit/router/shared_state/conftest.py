# SPDX-License-Identifier: Apache-2.0
"""Routers of a site, and no hurry."""

from __future__ import annotations

import pytest

from lerobot_serve.router.storage import follower


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine takes seconds from one step of a test to the next."""
    for name in ('MEMBER_S', 'STUCK_S', 'AWAY_S', 'IDLE_S'):
        monkeypatch.setattr(follower, name, 60.0)
