# SPDX-License-Identifier: Apache-2.0
"""Chooses the window, gathers its facts and evaluates the rules. One thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lerobot_serve.tools.diagnosis.rules import evaluate_rules, RuleResult, RuleStatus
from lerobot_serve.tools.diagnosis.source import sources
from lerobot_serve.tools.diagnosis.survey import Survey, survey
from lerobot_serve.tools.diagnosis.time_of_day import resolve_within, TimeOfDay
from lerobot_serve.tools.diagnosis.window import gather_facts
from lerobot_serve.tools.diagnosis.window_facts import WindowFacts

AROUND_S = 10.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`facts` is None without a window to explain; `is_covered`: the traces cover that time."""

    client: str
    survey: Survey
    is_covered: bool
    facts: WindowFacts | None
    verdicts: tuple[RuleResult, ...]
    requested_s: float | None

    @property
    def causes(self) -> list[RuleResult]:
        return [verdict for verdict in self.verdicts if verdict.status is RuleStatus.FOUND]


def diagnose(
    paths: Iterable[Path | str],
    client: str,
    *,
    at: TimeOfDay | None = None,
    around_s: float = AROUND_S,
) -> Diagnosis:
    """Diagnose a window around `at`, or the longest stall. Raises TraceError."""
    found = survey(sources(paths), client)
    if not found.is_found or (at is None and found.longest_stall is None):
        return Diagnosis(client, found, found.is_found, None, (), None)
    if at is None:
        begin_s, end_s = found.longest_stall.begin_s, found.longest_stall.end_s
    else:
        begin_s = resolve_within(at, found.begin_s, found.end_s)
        end_s = begin_s + at.length_s
    window = begin_s - around_s, end_s + around_s
    is_covered = window[0] <= found.end_s and found.begin_s <= window[1]
    requested_s = None if at is None else begin_s
    if not is_covered:
        return Diagnosis(client, found, False, None, (), requested_s)
    facts = gather_facts(found, client, *window)
    return Diagnosis(client, found, True, facts, tuple(evaluate_rules(facts)), requested_s)
