# SPDX-License-Identifier: Apache-2.0
"""What is logged once. Pure; one thread."""

from __future__ import annotations

from collections import OrderedDict

KEYS_LIMIT = 1024


class Once:
    """Whether something is said for the first time; the oldest keys are forgotten."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, None] = OrderedDict()

    def is_first(self, key: str) -> bool:
        """Return true once for each key."""
        if key in self._said:
            return False
        self._said[key] = None
        if len(self._said) > KEYS_LIMIT:
            self._said.popitem(last=False)
        return True
