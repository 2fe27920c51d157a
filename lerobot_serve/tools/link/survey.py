# SPDX-License-Identifier: Apache-2.0
"""What a survey of a link has found. Pure; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lerobot_serve.telemetry.percentiles import percentile
from lerobot_serve.tools.link.participants import Participant
from lerobot_serve.tools.link.rates import KeyRate


@dataclass(slots=True)
class ServerAnswers:
    """The responses of one server to get_status; `is_heard`: it publishes its status."""

    round_trips_ms: list[float] = field(default_factory=list)
    policy: str = ''
    policy_type: str = ''
    text: str = ''
    # why the last query had no response
    error: str = ''
    is_heard: bool = False

    def percentile_ms(self, percent: float) -> float | None:
        """Return a percentile of the round trips; None without a response."""
        return percentile(self.round_trips_ms, percent)


@dataclass(frozen=True, slots=True)
class LinkSurvey:
    """
    `problems` has a sentence with a remedy for each endpoint that was not reached, `conflicts` one
    for each name that several servers have.
    """

    site: str
    duration_s: float
    reached: tuple[str, ...]
    problems: dict[str, str]
    conflicts: tuple[str, ...] = ()
    # with a liveliness token, and those whose messages were seen without one
    alive: frozenset[Participant] = frozenset()
    seen: frozenset[Participant] = frozenset()
    answers: dict[str, ServerAnswers] = field(default_factory=dict)
    rates: Sequence[KeyRate] = ()

    @property
    def problem_texts(self) -> list[str]:
        """All problems and conflicts."""
        return [*self.problems.values(), *self.conflicts]

    @property
    def participants(self) -> list[Participant]:
        """All of this site, sorted: each server before its clients."""
        return sorted(p for p in self.alive | self.seen if p.site == self.site)

    @property
    def servers(self) -> list[Participant]:
        """The servers and routers of this site that have a token."""
        return [p for p in self.participants if p.is_server and p in self.alive]

    @property
    def failure(self) -> str:
        """Why nothing was found, with the remedy; empty when a server responds."""
        if not self.reached:
            return '; '.join(self.problems.values())
        if not self.servers:
            return self._nobody()
        found = [self.answers[server.server] for server in self.servers]
        if any(each.round_trips_ms or each.is_heard for each in found):
            return ''
        return f'no server responds: {found[0].error}'

    def _nobody(self) -> str:
        where = ', '.join(self.reached)
        others = sorted({p.site for p in self.alive} - {self.site})
        if others:
            return (
                f'{where} has no server of the site {self.site}; it has the site '
                f'{", ".join(others)}: give it as --site'
            )
        return (
            f'{where} is reached, and no server or router is there; start one with zenoh_listen '
            'or zenoh_connect; under access control name it with --server, and check what the '
            'keys of --keys allow'
        )
