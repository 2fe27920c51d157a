# SPDX-License-Identifier: Apache-2.0
"""What the hunt looks for."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant that does not hold; `rule` is its name, the text says what was seen."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f'{rule}: {text}')
        self.rule = rule
