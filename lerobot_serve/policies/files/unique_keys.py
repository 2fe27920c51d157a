# SPDX-License-Identifier: Apache-2.0
"""A YAML loader for files in which a key that is given twice is a mistake. Any thread."""

from __future__ import annotations

from typing import Any

import yaml


class UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Refuses a key that is given twice (ValueError); YAML itself would ignore the first value."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ValueError(f'{twice} is given twice')
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping
