# SPDX-License-Identifier: Apache-2.0
"""A played fleet, the settings of its loop, and its conductor."""

from __future__ import annotations

import pytest
from support.loop.played_fleet import Fleet, record_bags, V1

from lerobot_serve.tools.loop import observing
from lerobot_serve.tools.loop.conductor import Conductor
from lerobot_serve.tools.loop.journal import Journal
from lerobot_serve.tools.loop.settings import LoopSettings


@pytest.fixture
def fleet(tmp_path, monkeypatch) -> Fleet:
    made = Fleet(tmp_path)
    monkeypatch.setattr(observing, 'versions', lambda _: made.versions)
    monkeypatch.setattr(observing, 'fingerprint', lambda _: V1)
    return made


@pytest.fixture
def settings(tmp_path) -> LoopSettings:
    recordings = tmp_path / 'bags'
    record_bags(recordings, 3)
    return LoopSettings(
        folder=tmp_path / 'loop',
        store=tmp_path / 'store',
        gates=tmp_path / 'gates',
        recordings=recordings,
        champion=tmp_path / 'v1',
        gate_recordings=2,
    )


@pytest.fixture
def conduct(fleet, settings):
    """Returns a conductor; the one before has ended."""
    opened: list[Journal] = []

    def make() -> Conductor:
        for journal in opened[-1:]:
            journal.__exit__(None, None, None)
        opened.append(Journal(settings.folder))
        return Conductor(
            settings, opened[-1], fleet.observe, fleet.run, lambda _: None, lambda: fleet.now_s
        )

    yield make
    opened[-1].__exit__(None, None, None)
