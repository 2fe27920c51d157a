# SPDX-License-Identifier: Apache-2.0
"""`replace` for dataclasses and Structs alike, as copy.replace of Python 3.13."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from msgspec import Struct, structs

T = TypeVar('T')


def replace(record: T, **changes: object) -> T:
    """Return a copy with these changes."""
    replaced = structs.replace if isinstance(record, Struct) else dataclasses.replace
    return replaced(record, **changes)
