# SPDX-License-Identifier: Apache-2.0
"""What a viewer makes of a merge patch (RFC 7396)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def applied(document: Any, patch: Any) -> Any:
    """Return the document after a patch; both are left as they are."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(document) if isinstance(document, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = applied(result.get(key), value)
    return result
