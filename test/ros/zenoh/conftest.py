# SPDX-License-Identifier: Apache-2.0
"""Each test sets the links of its nodes itself."""

from __future__ import annotations

import pytest


@pytest.fixture
def link() -> str:
    return 'ros'
