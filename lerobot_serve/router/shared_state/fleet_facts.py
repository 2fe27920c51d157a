# SPDX-License-Identifier: Apache-2.0
"""
The facts of a rollout from the reports of all routers of a site. Owned by the executor thread.

Counters are summed by what each run of a router adds. A slot is healthy when any router finds it
so; where another one does not, or sees another policy there, no step is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
import math
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import asdict

from lerobot_serve.files.load import load
from lerobot_serve.router.canary.facts import (
    ARMS,
    counter_growth,
    COUNTERS,
    Counters,
    counters,
    EpisodeEvent,
    Facts,
    SlotFacts,
)
from lerobot_serve.router.storage.rows import Member

Value = Annotated[float, Meta(ge=0, le=1e9)]


class SlotReport(Counters):
    """What another router sees of a slot; the latency is null with too few replies."""

    latency_ms_p95: Value | None
    oldest_age_s: Value
    healthy: bool
    health_text: str
    policy: str


@dataclass(slots=True)
class FleetCounters:
    """
    The sum of what each run of each router has added since this router leads; `known` are its last
    counters. What a run has counted before it was first seen is of no known step.
    """

    totals: dict[str, SlotFacts] = field(
        default_factory=lambda: {arm: SlotFacts() for arm in ARMS}
    )
    known: dict[tuple[str, str], SlotFacts] = field(default_factory=dict)

    def add(self, reports: Mapping[str, Mapping[str, SlotFacts]]) -> None:
        """Add the reports of all routers: run -> arm -> facts."""
        for run, arms in reports.items():
            for arm, now in arms.items():
                grown = counter_growth(self.known.get((run, arm), now), now)
                total = self.totals[arm]
                more = {name: getattr(total, name) + grown[name] for name in COUNTERS}
                self.totals[arm] = replace(total, **more)
                self.known[run, arm] = now

    def as_json(self, runs: Collection[str]) -> dict[str, dict[str, dict[str, int]]]:
        """Return the last counters of these runs: a router that leads next continues from them."""
        found: dict[str, dict[str, dict[str, int]]] = {run: {} for run in runs}
        for (run, arm), slot in self.known.items():
            if run in found:
                found[run][arm] = counters(slot)
        return found


def counters_from_json(values: object) -> FleetCounters:
    """Return counters that go on from stored ones; from nothing where they cannot be read."""
    found = FleetCounters()
    if not isinstance(values, dict):
        return found
    for run, arms in values.items():
        for arm in ARMS:
            with suppress(ValueError, KeyError, TypeError):
                found.known[run, arm] = SlotFacts(**asdict(load(Counters, arms[arm], arm)))
    return found


def report_of(facts: Facts) -> dict[str, Any]:
    """Return the own view of both slots for the other routers; see `reported`."""
    return {arm: _reported_slot(getattr(facts, arm)) for arm in ARMS}


def _reported_slot(slot: SlotFacts) -> dict[str, Any]:
    values = {name: getattr(slot, name) for name in SlotReport.__struct_fields__}
    latency = slot.latency_ms_p95
    values['latency_ms_p95'] = None if math.isnan(latency) else float(latency)
    return {**values, 'oldest_age_s': float(slot.oldest_age_s)}


def reported(report: Mapping[str, Any]) -> dict[str, SlotFacts]:
    """Return the view of another router. Raises ValueError."""
    views = {arm: asdict(load(SlotReport, report.get(arm), arm)) for arm in ARMS}
    for view in views.values():
        if view['latency_ms_p95'] is None:
            view['latency_ms_p95'] = math.nan
    return {arm: SlotFacts(**view) for arm, view in views.items()}


def fleet_facts(
    own: Facts,
    others: Iterable[tuple[Member, Mapping[str, SlotFacts]]],
    fleet: FleetCounters,
    run: str,
    events: tuple[EpisodeEvent, ...],
    problems: Iterable[str] = (),
) -> Facts:
    """
    Return the facts of the site: those of this run of a router and of all others. Problems keep
    the rollout from its next step.
    """
    others = list(others)
    own_view = {arm: getattr(own, arm) for arm in ARMS}
    fleet.add({run: own_view, **{member.router: view for member, view in others}})
    slots, missing = {}, [own.missing, *problems]
    for arm in ARMS:
        views = [own_view[arm], *(view[arm] for _, view in others)]
        healthy = next((view for view in views if view.healthy), views[0])
        latencies = [v.latency_ms_p95 for v in views if not math.isnan(v.latency_ms_p95)]
        slots[arm] = replace(
            own_view[arm],
            **{name: getattr(fleet.totals[arm], name) for name in COUNTERS},
            latency_ms_p95=max(latencies, default=math.nan),
            oldest_age_s=max(view.oldest_age_s for view in views),
            healthy=healthy.healthy,
            health_text=healthy.health_text,
        )
        places = [('here', own_view[arm]), *((f'at {m.name}', view[arm]) for m, view in others)]
        missing += [_disagreement(arm, own_view[arm], place, view) for place, view in places]
    return replace(
        own, **slots, events=events, missing='; '.join(text for text in missing if text)
    )


def _disagreement(arm: str, own: SlotFacts, place: str, seen: SlotFacts) -> str:
    """Return why what a router sees keeps the rollout from its next step; empty otherwise."""
    if seen.policy and own.policy and seen.policy != own.policy:
        return f'the {arm} is {own.policy} here, and {seen.policy} {place}'
    return (
        '' if seen.healthy else f'the slot of the {arm} is not healthy {place}: {seen.health_text}'
    )
