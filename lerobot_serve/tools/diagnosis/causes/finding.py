# SPDX-License-Identifier: Apache-2.0
"""The result of evaluating one cause. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.tools.diagnosis.causes.time_spans import Span


@dataclass(frozen=True, slots=True)
class CauseFinding:
    """
    `is_cause` is None without evidence; `evidence` has the figures, or names the missing evidence;
    `spans` are when the cause kept the robot without actions.
    """

    is_cause: bool | None
    evidence: str
    spans: tuple[Span, ...] = ()
