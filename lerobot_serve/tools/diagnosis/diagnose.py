# SPDX-License-Identifier: Apache-2.0
"""Chooses the window, gathers its facts and evaluates the rules. One thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lerobot_serve.tools.diagnosis.rules import evaluate_rules, RuleResult, RuleStatus
from lerobot_serve.tools.diagnosis.survey import Survey, survey
from lerobot_serve.tools.diagnosis.window import gather_facts
from lerobot_serve.tools.diagnosis.window_facts import WindowFacts
from lerobot_serve.tools.output.local_time import resolve_within, TimeOfDay
from lerobot_serve.tools.traces.query import TraceQuery


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`facts` is None without a window to explain; `is_covered`: the traces cover that time."""

    client: str
    survey: Survey
    is_covered: bool
    facts: WindowFacts | None
    results: tuple[RuleResult, ...]
    requested_s: float | None

    @property
    def causes(self) -> list[RuleResult]:
        return [result for result in self.results if result.status is RuleStatus.FOUND]


def diagnose(
    paths: Iterable[Path | str],
    client: str,
    *,
    at: TimeOfDay | None = None,
    around_s: float = 10.0,
) -> Diagnosis:
    """Diagnose a window around `at`, or the longest stall. Raises TraceError."""
    query = TraceQuery(paths, with_actions=False)
    found = survey(query.runs, client)
    span_s = span_to_explain(found, at) if found.is_found else None
    if span_s is None:
        return Diagnosis(client, found, found.is_found, None, (), None)
    window = span_s[0] - around_s, span_s[1] + around_s
    is_covered = window[0] <= found.end_s and found.begin_s <= window[1]
    requested_s = None if at is None else span_s[0]
    if not is_covered:
        return Diagnosis(client, found, False, None, (), requested_s)
    facts = gather_facts(found, client, *window)
    return Diagnosis(client, found, True, facts, tuple(evaluate_rules(facts)), requested_s)


def span_to_explain(found: Survey, at: TimeOfDay | None) -> tuple[float, float] | None:
    """Return begin and end of the time `at`, by default of the longest stall if any."""
    if at is not None:
        begin_s = resolve_within(at, found.begin_s, found.end_s)
        return begin_s, begin_s + at.length_s
    stall = found.longest_stall
    return None if stall is None else (stall.begin_s, stall.end_s)
