# SPDX-License-Identifier: Apache-2.0
"""JSON that every program reads: RFC 8259 has no NaN and no infinity. Pure; any thread."""

from __future__ import annotations

from collections.abc import Mapping
import json
from math import isfinite
from typing import Any


def json_text(found: Any, indent: int | None = None) -> str:
    """Return an object as JSON; a number that is none, such as one not known yet, is null."""
    return json.dumps(_finite(found), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value
