# SPDX-License-Identifier: Apache-2.0
"""
JSON merge patches (RFC 7396): the difference of two documents. Pure.

In a merge patch null removes a key, so a document holds no null outside of arrays: a value that is
unknown is absent (`without_nulls`). Documents are never changed in place: what is the same object
in both is skipped, so a difference costs what changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


def without_nulls(document: Mapping[str, Any]) -> Json:
    """Return an object without the keys whose value is None, at every depth of objects."""
    return {
        key: without_nulls(value) if isinstance(value, Mapping) else value
        for key, value in document.items()
        if value is not None
    }


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """Return the merge patch from one document without nulls to another; empty when equal."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if before is value:
            continue
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inner := difference(before, value):
                patch[key] = inner
        elif before != value or type(before) is not type(value):
            patch[key] = value
    return patch
