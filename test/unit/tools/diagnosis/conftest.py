# SPDX-License-Identifier: Apache-2.0
"""The texts of these tests are those of a machine that runs in UTC."""

from __future__ import annotations

import pytest
from support.time_zone import time_zone


@pytest.fixture(autouse=True)
def in_utc():
    with time_zone('UTC'):
        yield
