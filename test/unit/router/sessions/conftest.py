# SPDX-License-Identifier: Apache-2.0
"""Rigs of sessions at replicas, whose threads end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.router.dispatch_rig import check_counts
from support.router.replica_rig import ControlRig


@pytest.fixture
def make() -> Iterator[Callable[..., ControlRig]]:
    """Return a maker of rigs."""
    made = []

    def a_rig(*arguments, **more) -> ControlRig:
        made.append(ControlRig(*arguments, **more))
        return made[-1]

    yield a_rig
    for rig in made:
        check_counts(rig.slots, rig.robots)
        rig.callers.close()


@pytest.fixture
def rig(make) -> ControlRig:
    return make()
